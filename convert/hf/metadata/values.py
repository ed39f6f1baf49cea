"""Whether a GGUF file can hold the metadata from a model's folder: the last check before writing.

gguf-py checks no value. It fails when it writes, with an error that names no key.
"""

from __future__ import annotations

import re
from typing import Any

from gguf import GGUFValueType, GGUFWriter

from ...errors import ConvertError
from ..config import F32_MAX
from ..files.jsons import brief


def check_values(writer: GGUFWriter) -> None:
    """`ConvertError` naming the first key whose value is not of its type, or beyond its range."""
    for values in writer.kv_data:
        for key, value in values.items():
            if expected := _expected(value.value, value.type, value.sub_type):
                raise ConvertError(
                    f"the folder's files give {brief(key)} the value {brief(value.value)}, "
                    f"expected {expected}"
                )


def _expected(value: Any, kind: GGUFValueType, item: GGUFValueType | None = None) -> str | None:
    """What was expected in place of `value`; None where the file can hold it."""
    if integer := re.fullmatch(r"(U?)INT(\d+)", kind.name):
        bits = int(integer[2])
        low, high = (0, 1 << bits) if integer[1] else (-(1 << bits - 1), 1 << bits - 1)
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value < high
        return None if fits else f"a whole number from {low} to {high - 1}"
    if kind in (GGUFValueType.FLOAT32, GGUFValueType.FLOAT64):
        fits = type(value) in (int, float) and not abs(value) > F32_MAX  # NaN may stay
        return None if fits else "a number"
    if kind is GGUFValueType.BOOL:
        return None if isinstance(value, bool) else "true or false"
    if kind is GGUFValueType.STRING:
        return None if _is_text(value) else "text that UTF-8 can write"
    if isinstance(value, bytes):  # a list of bytes
        return None
    if not isinstance(value, list) or not value:
        return "a list that is not empty"
    if item is None and isinstance(value[0], str):
        return None if all(map(_is_text, value)) else "a list of texts that UTF-8 can write"
    if item is None and type(value[0]) not in (int, float, bool):
        return "a list of texts or numbers"
    kind = GGUFValueType.get_type(value[0]) if item is None else item
    alike = all(type(each) is type(value[0]) and _expected(each, kind) is None for each in value)
    return None if alike else "a list of values of one kind"


def _is_text(value: Any) -> bool:
    if isinstance(value, bytes):
        return True
    try:
        return isinstance(value, str) and len(value.encode()) >= 0
    except UnicodeEncodeError:
        return False
