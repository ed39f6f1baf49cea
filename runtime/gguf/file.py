"""Opening GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ...system.text import shown
from .errors import GGUFError
from .layout import DEFAULT_ALIGNMENT, MAX_KEYS, MAX_TENSORS, ValueType
from .metadata import Metadata, read_metadata
from .source import Cursor, Source
from .split import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, shard_paths
from .tensors import Tensor, read_tensors

T = TypeVar("T")
_REQUIRED: Any = object()
_KIND_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "an array of strings",
    np.ndarray: "an array of numbers",
}


class _Shard:
    """One file: its own metadata, tensors and alignment."""

    def __init__(self, path: Path) -> None:
        self.source = Source(path)
        cursor = Cursor(self.source)
        self.version = cursor.version
        n = cursor.count_bytes
        # The fewest bytes of a tensor (name, n_dims, one dim, type, offset) and of a key (key,
        # type, value).
        n_tensors = cursor.count("n_tensors", n + 4 + n + 4 + 8, MAX_TENSORS)
        n_keys = cursor.count("n_keys", n + 4 + 1, MAX_KEYS)
        self.metadata = read_metadata(cursor, n_keys)
        self.alignment = self._number("general.alignment", DEFAULT_ALIGNMENT)
        if self.alignment < 8 or self.alignment & (self.alignment - 1):
            raise self.source.error(
                "metadata 'general.alignment'", str(self.alignment), "a power of two from 8"
            )
        self.tensors = read_tensors(cursor, n_tensors, self.alignment)

    def _number(self, key: str, default: int) -> int:
        return typed(self.source.path, self.metadata, key, int, default)

    def split(self) -> tuple[int, int]:
        """The number of this shard, from 0, and how many shards there are."""
        return self._number(SPLIT_NO, 0), self._number(SPLIT_COUNT, 1)


class GGUFFile:
    """An open GGUF file, or all shards of a split one. A context manager.

    `metadata` is that of the first shard, decoded lazily; `tensors` are those of all shards, in
    the order of the files, their data views of the mapped files.
    """

    def __init__(self, path: Path) -> None:
        opened = _Shard(path)
        shards = _all_shards(opened)
        first = shards[0]
        self.path = path
        self.paths = tuple(shard.source.path for shard in shards)
        self.version = first.version
        self.alignment = first.alignment
        self.metadata = first.metadata
        self._sources = tuple(shard.source for shard in shards)
        self.tensors: Mapping[str, Tensor] = MappingProxyType(_all_tensors(shards))

    @property
    def architecture(self) -> str:
        """`general.architecture`; GGUFError where the file has none."""
        return self.get("general.architecture", str)

    @property
    def n_parameters(self) -> int:
        """Weights in all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors.values())

    @property
    def n_bytes(self) -> int:
        """Size of all files together."""
        return sum(source.size for source in self._sources)

    def get(self, key: str, kind: type[T], default: T = _REQUIRED) -> T:
        """The metadata value of `key`, which must be of `kind`.

        `kind` is int, float (takes whole numbers too), bool, str, list (an array of strings) or
        np.ndarray (an array of numbers). Without the key: `default`, or GGUFError if none is given.
        """
        return typed(self.path, self.metadata, key, kind, default)

    def touch(self) -> None:
        """See `Source.touch`: of all shards."""
        for source in self._sources:
            source.touch()

    def close(self) -> None:
        """Close the files. Arrays taken from them stay valid; nothing else can be read."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<GGUFFile {str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"
        )


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file; for a split one, any of its shards.

    Reads only the headers. Raises GGUFError where a file is missing or not sound: its counts,
    lengths, offsets and types must fit its size.
    """
    return GGUFFile(Path(path))


def typed(path: Path, metadata: Metadata, key: str, kind: type[T], default: T = _REQUIRED) -> T:
    """`GGUFFile.get`, for metadata that has no GGUFFile yet."""
    if kind not in _KIND_NAMES:
        raise TypeError(
            f"kind {kind!r}: expected one of {', '.join(k.__name__ for k in _KIND_NAMES)}"
        )
    field = f"metadata {shown(key)}"
    if key not in metadata:
        if default is _REQUIRED:
            raise GGUFError(path, field, "no such key", _KIND_NAMES[kind])
        return default
    entry = metadata.entry(key)
    if entry.kind is ValueType.ARRAY:
        found: type = list if entry.item in (ValueType.STRING, ValueType.ARRAY) else np.ndarray
    else:
        found = type(metadata[key])
    if found is int and kind is float:
        return kind(metadata[key])  # type: ignore[call-arg]
    if found is not kind:
        raise GGUFError(path, field, entry.type_name, _KIND_NAMES[kind])
    value: T = metadata[key]
    return value


def _all_shards(opened: _Shard) -> list[_Shard]:
    """All shards of the file that `opened` belongs to, in order."""
    number, count = opened.split()
    paths = shard_paths(opened.source.path, number, count)
    shards = [opened if i == number else _Shard(path) for i, path in enumerate(paths)]
    for i, shard in enumerate(shards):
        if shard.split() != (i, count):
            found_number, found_count = shard.split()
            raise shard.source.error(
                f"metadata {SPLIT_NO!r}",
                f"shard {found_number + 1} of {found_count}",
                f"shard {i + 1} of {count}, as its name says",
            )
    return shards


def _all_tensors(shards: list[_Shard]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in tensors:
                raise shard.source.error(
                    f"tensor {shown(tensor.name)}",
                    f"the name also in {tensors[tensor.name].source.path.name}",
                    "every tensor once",
                )
            tensors[tensor.name] = tensor
    first = shards[0]
    expected = typed(first.source.path, first.metadata, SPLIT_TENSORS, int, len(tensors))
    if len(shards) > 1 and len(tensors) != expected:
        raise first.source.error(
            f"metadata {SPLIT_TENSORS!r}",
            f"{len(tensors):,} tensors in {len(shards)} shards",
            f"{expected:,}",
        )
    return tensors
