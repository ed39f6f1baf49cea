"""Types of values that options take, for argparse: what does not do is wrong usage."""

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ...system.text import shown

_MULTIPLES = {"k": 1 << 10, "m": 1 << 20}
NO_MODEL = "give a GGUF file or -hf USER/REPO"
"""The end of what is said of a word that is no model."""
LARGEST = 2**31 - 1
"""No count that an option takes is larger: kernels number tokens in 32 bits."""
LARGEST_SEED = 2**32 - 1
"""Other whole numbers, seeds among them, which llama.cpp has of 32 bits without a sign."""


def calling(store: Callable[[argparse.Namespace, Any], None]) -> type[argparse.Action]:
    """The argparse action that calls `store(namespace, value)`."""

    class Calling(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: object,
            option_string: str | None = None,
        ) -> None:
            store(namespace, values)

    return Calling


def file_path(text: str) -> Path:
    """A path; "" is refused, because it would mean the working folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected a path, found {text!r}")
    return Path(text)


def file_name(text: str) -> str:
    """A path as text, or a name that becomes one."""
    file_path(text)
    return text


def utf8(text: str) -> str:
    """Text for a model: what was typed must have been UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ascii(text[error.start])[-3:-1]
        raise argparse.ArgumentTypeError(
            f"expected UTF-8 text, found the byte 0x{byte} at character {error.start + 1}"
        ) from error
    return text


def positive(text: str) -> int:
    """A count from 1 on."""
    return _within(text, 1)


def count(text: str) -> int:
    """A count from 0 on: 512, 128K (1,024 each), 1M (1,048,576)."""
    return _within(text, 0)


def limit(text: str) -> int:
    """A count, or -1 for no limit."""
    return _within(text, -1)


def integer(text: str) -> int:
    """A whole number that counts nothing, such as a seed; below 0 too."""
    return _within(text, -LARGEST_SEED, LARGEST_SEED, ())


def counts(text: str) -> list[int]:
    """ "0,512,8K" → [0, 512, 8192]."""
    return [count(part) for part in text.split(",")]


def number(text: str) -> float:
    """A decimal number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {shown(text)}") from None


def _within(
    text: str, least: int, most: int = LARGEST, endings: Collection[str] = _MULTIPLES
) -> int:
    ending = text[-1:].lower()
    times = _MULTIPLES[ending] if ending in endings and ending else 1
    written = text[:-1] if times > 1 else text
    digits = written.removeprefix("-") if least < 0 else written
    if digits.isascii() and digits.isdigit() and len(digits) <= 100:
        found = int(written) * times
        if least <= found <= most:
            return found
    raise argparse.ArgumentTypeError(
        f"expected a whole number from {least} to {most}, found {shown(text)}"
    )
