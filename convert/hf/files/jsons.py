"""Reads the JSON files of a model's folder, which may hold anything."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

from ....system import text
from ....system.text import one_line
from ...errors import ConvertError

MAX_BYTES = 4 << 20
"""Most bytes of a JSON file; indexes of shards and configurations have less than 1 MB."""
MAX_VOCABULARY_BYTES = 48 << 20
"""Most bytes of a tokenizer's file; the largest published one has 33 MB, 2.5 million values."""
MAX_VALUES = 1 << 22


class _Spelling(reprlib.Repr):
    """JSON's words for what Python spells otherwise, also within lists and objects."""

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"


def brief(value: object) -> str:
    """A value of a JSON file for a message, as `system.text.brief` cuts it."""
    return text.brief(value, spelling=_Spelling)


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """A whole file; `ConvertError` for one that is too long to be what its name says."""
    size = path.stat().st_size
    if size > limit:
        raise ConvertError(f"{path.name} has {size:,} bytes, expected at most {limit:,}")
    with path.open("rb") as file:
        return file.read(limit)


def read_json(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """A JSON object from a file; `ConvertError` for one that cannot be read as such."""
    return parse_json(read_bytes(path, limit), path.name)


def parse_json(data: bytes, source: str) -> dict[str, Any]:
    """The JSON object in `data`; `ConvertError` naming its source where there is none.

    Refuses strings that UTF-8 cannot write (half a surrogate pair), and more than MAX_VALUES
    values.
    """
    n_values = sum(map(data.count, (b",", b"[", b"{", b":")))
    if n_values > MAX_VALUES:
        raise ConvertError(f"{source}: over {MAX_VALUES:,} values in a JSON object")
    try:
        value = json.loads(data.decode("utf-8"))
        if rb"\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{source}: not valid JSON: {one_line(str(error), 120)}") from None
    if not isinstance(value, dict):
        raise ConvertError(f"{source}: expected a JSON object, found {brief(value)}")
    return value


def optional_json(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The same as `read_json`; an empty object where there is no such file."""
    return read_json(path, limit) if path.is_file() else {}
