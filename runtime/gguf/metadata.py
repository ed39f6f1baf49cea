"""The metadata of a GGUF file: located when it is opened, decoded on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import I64
from ...system.text import shown
from .layout import (
    MAX_ARRAY_DEPTH,
    MAX_ITEM_BYTES,
    MAX_KEY_BYTES,
    MAX_STRING_BYTES,
    MAX_TEXT_BYTES,
    NESTED_ARRAY_ITEMS,
    NUMBERS,
    U32,
    ValueType,
)
from .source import TRUNCATED, Cursor, Source
from .strings import BrokenString, decode_strings, walk_strings

_EXPECTED_TYPES = "a value type, 0 to 12"
_SIZES = {kind: np.dtype(name).itemsize for kind, name in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """The place and type of one value: bytes `start` … `end` - 1 of the file.

    For an array, `item` is the type of its `count` values; strings also have `starts`, arrays
    their `parts`.
    """

    kind: ValueType
    start: int
    end: int
    item: ValueType | None = None
    count: int = 1
    starts: I64 | None = None
    parts: tuple[Entry, ...] = ()

    @property
    def type_name(self) -> str:
        """`u32`, `string`, `string[32000]`, `array[3]`."""
        if self.item is None:
            return self.kind.name.lower()
        return f"{self.item.name.lower()}[{self.count}]"


class Metadata(Mapping[str, Any]):
    """Values by key, in the order of the file, each decoded on first use.

    Numbers are int, float or bool; strings are str (bytes that are not UTF-8 as surrogate
    escapes); arrays of numbers are NumPy arrays, of strings `list[str]`, of arrays a list.
    count_bytes: bytes of a count in this file; every string begins with one.
    """

    def __init__(self, source: Source, entries: dict[str, Entry], count_bytes: int) -> None:
        self._source = source
        self._entries = entries
        self.count_bytes = count_bytes
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            self._decoded[key] = self._decode(self._entries[key], key)
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, key: str) -> Entry:
        """Type and place of a value, without decoding it."""
        return self._entries[key]

    def raw(self, entry: Entry) -> bytes:
        """The bytes of a value as they lie in the file; of an array, its items."""
        return bytes(self.view(entry))

    def view(self, entry: Entry) -> memoryview:
        """Like `raw`, without a copy."""
        return self._source.view[entry.start : entry.end]

    def first(self, key: str, n: int) -> Any:
        """The first `n` values of an array or characters of a string, without decoding the rest."""
        entry = self._entries[key]
        if entry.kind is ValueType.STRING and key not in self._decoded:
            start = entry.start + self.count_bytes
            raw = self._source.view[start : min(entry.end, start + 4 * n)]
            return str(raw, "utf-8", "surrogateescape")[:n]
        if key in self._decoded or entry.item is None or entry.count <= n:
            return self[key][:n]
        part = replace(entry, count=n, parts=entry.parts[:n])
        if entry.starts is not None:
            part = replace(part, starts=entry.starts[:n], end=int(entry.starts[n]))
        return self._decode(part, key)

    def _decode(self, entry: Entry, key: str) -> Any:
        view = self._source.view
        if entry.kind is ValueType.STRING:
            data = bytes(view[entry.start + self.count_bytes : entry.end])
            if len(data) > MAX_TEXT_BYTES and not data.isascii():
                raise self._source.error(
                    f"metadata {shown(key)}",
                    f"a text of {len(data):,} bytes",
                    f"at most {MAX_TEXT_BYTES:,}, or ASCII",
                )
            return data.decode("utf-8", "surrogateescape")
        if entry.item is None:
            return self._numbers(entry.kind, entry.start, 1, key)[0].item()
        if entry.item is ValueType.ARRAY:
            return [self._decode(part, key) for part in entry.parts]
        if entry.starts is not None:
            return decode_strings(view, entry.starts, entry.end, self.count_bytes)
        return self._numbers(entry.item, entry.start, entry.count, key)

    def _numbers(self, kind: ValueType, start: int, count: int, key: str) -> NDArray[Any]:
        # Copied because values are not aligned and arrays should outlive the file.
        values = np.frombuffer(self._source.view, NUMBERS[kind], count, start).copy()
        if kind is ValueType.BOOL:
            if count and values.max() > 1:
                raise self._source.error(
                    f"metadata {shown(key)}", f"a bool of {values.max()}", "0 or 1"
                )
            values = values.view(np.bool_)
        values.flags.writeable = False
        return values


def read_metadata(cursor: Cursor, n_keys: int) -> Metadata:
    """Locate all values of the metadata section; GGUFError where its structure is not sound."""
    entries: dict[str, Entry] = {}
    for i in range(n_keys):
        key = cursor.name(f"metadata key {i}", MAX_KEY_BYTES)
        field = f"metadata {shown(key)}"
        if key in entries:
            raise cursor.source.error(field, "the key twice", "every key once")
        entries[key] = _walk_value(cursor, _value_type(cursor, field), field)
    return Metadata(cursor.source, entries, cursor.count_bytes)


def _value_type(cursor: Cursor, field: str) -> ValueType:
    number = cursor.u32(f"{field}: type")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.source.error(f"{field}: type", str(number), _EXPECTED_TYPES) from None


def _walk_value(cursor: Cursor, kind: ValueType, field: str) -> Entry:
    start = cursor.position
    if kind is ValueType.ARRAY:
        entry = _walk_array(cursor, field, 1)
        cursor.array(entry.end - entry.start, field)
        return entry
    if kind is ValueType.STRING:
        cursor.skip(cursor.count(f"{field}: length", 1, MAX_STRING_BYTES), field)
    else:
        cursor.skip(_SIZES[kind], field)
    return Entry(kind, start, cursor.position)


def _walk_array(cursor: Cursor, field: str, depth: int) -> Entry:
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.source.error(
            field, f"arrays nested {depth} deep", f"at most {MAX_ARRAY_DEPTH}"
        )
    item = _value_type(cursor, f"{field}: items")
    if item is ValueType.ARRAY:
        item_bytes = U32.size + cursor.count_bytes
    else:
        item_bytes = cursor.count_bytes if item is ValueType.STRING else _SIZES[item]
    count = cursor.count(f"{field}: array length", item_bytes)
    start = cursor.position
    starts: I64 | None = None
    parts: tuple[Entry, ...] = ()
    if item is ValueType.STRING:
        cursor.items(count, field)
        starts = _walk_strings(cursor, count, field)
    elif item is ValueType.ARRAY:
        cursor.items(count * NESTED_ARRAY_ITEMS, field)
        parts = tuple(_walk_array(cursor, field, depth + 1) for _ in range(count))
    else:
        cursor.skip(count * item_bytes, field)
    return Entry(ValueType.ARRAY, start, cursor.position, item, count, starts, parts)


def _walk_strings(cursor: Cursor, count: int, field: str) -> I64:
    try:
        starts, cursor.position = walk_strings(
            cursor.view, cursor.position, count, cursor.count_bytes
        )
    except BrokenString as broken:
        raise cursor.source.error(
            f"{field}: string {broken.index} of {count}",
            broken.found,
            "an end inside the file",
            TRUNCATED,
        ) from None
    last = cursor.position - int(starts[-1]) if count else 0
    longest = max(last, int((starts[1:] - starts[:-1]).max(initial=0))) - cursor.count_bytes
    if longest > MAX_ITEM_BYTES:
        raise cursor.source.error(
            field, f"a string of {longest:,} bytes in an array", f"at most {MAX_ITEM_BYTES:,}"
        )
    return starts
