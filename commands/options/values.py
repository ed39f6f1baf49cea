"""Types of values that options take, for argparse: any other value is wrong usage."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...system import values
from ...system.text import shown
from ...system.values import WrongValue

NO_MODEL = "give a GGUF file or -hf USER/REPO"
"""The end of errors about a word that is not a model."""
WEIGHT_TYPES = (
    "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, q2_k, q3_k_s, q3_k_m, q3_k_l, "
    "q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k"
)
"""Names in `convert.quantize.mixes`, whose import takes half a second."""
LARGEST_SEED = 2**32 - 1
"""In llama.cpp, a seed has 32 bits."""


def argument_type(kind: Callable[..., Any], *limits: int) -> Callable[[str], Any]:
    """An argparse type: `kind(text, *limits)`, whose `WrongValue`s are wrong usage."""

    def read(text: str) -> Any:
        try:
            return kind(text, *limits)
        except WrongValue as wrong:
            raise argparse.ArgumentTypeError(str(wrong)) from wrong

    return read


file_name = argument_type(values.path_text)
"""A path as text, or a name that becomes one."""
positive = argument_type(values.count, 1)
"""A count from 1 on."""
count = argument_type(values.count)
"""A count from 0 on."""
seed = argument_type(partial(values.count, units=False), 0, LARGEST_SEED)
"""What random numbers begin with."""
integer = argument_type(partial(values.count, units=False), -LARGEST_SEED, LARGEST_SEED)
"""A whole number that counts nothing; below 0 too."""


def limit(text: str) -> int | None:
    """A count, or -1 for no limit: None."""
    number: int = argument_type(values.count, -1)(text)
    return None if number < 0 else number


def file_path(text: str) -> Path:
    """A path. "" is refused: it would mean the working folder."""
    return Path(file_name(text))


def utf8(text: str) -> str:
    """Text for a model, which must be UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ascii(text[error.start])[-3:-1]
        raise argparse.ArgumentTypeError(
            f"expected UTF-8 text, found the byte 0x{byte} at character {error.start + 1}"
        ) from error
    return text


def counts(text: str) -> list[int]:
    """ "0,512,8K" → [0, 512, 8192]."""
    return [count(part) for part in text.split(",")]


def number(text: str) -> float:
    """A decimal number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {shown(text)}") from None
