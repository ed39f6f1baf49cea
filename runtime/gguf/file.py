"""Opening GGUF files, also those split in shards: `NAME-00001-of-00003.gguf` and its siblings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ...system.text import shown
from .layout import DEFAULT_ALIGNMENT, MAX_KEYS, MAX_TENSORS, ValueType
from .metadata import Metadata, read_metadata
from .source import Cursor, GGUFError, Source
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

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"

# The name has five digits, the count in the metadata is 16 bits wide.
_MAX_SHARDS = (1 << 16) - 1
_NAME = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)",
    re.DOTALL | re.IGNORECASE,
)


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
    def weight_type(self) -> str:
        """The type of most weights, as "Q4_1"."""
        by_type: Counter[str] = Counter()
        for tensor in self.tensors.values():
            by_type[tensor.type.name] += tensor.n_elements
        return max(by_type, key=by_type.__getitem__)

    @property
    def file_type(self) -> str:
        """The name of `general.file_type`, as "Q4_K_M"; without one `weight_type`."""
        from gguf import LlamaFileType

        number = self.metadata.get("general.file_type")
        names = {int(known): known.name.partition("_")[2] for known in LlamaFileType}
        return (isinstance(number, int) and names.get(number)) or self.weight_type

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
        """Load every page of all shards into memory."""
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
        stored: type = list if entry.item in (ValueType.STRING, ValueType.ARRAY) else np.ndarray
    else:
        stored = type(metadata[key])
    if stored is int and kind is float:
        return kind(metadata[key])  # type: ignore[call-arg]
    if stored is not kind:
        raise GGUFError(path, field, entry.type_name, _KIND_NAMES[kind])
    value: T = metadata[key]
    return value


def _all_shards(opened: _Shard) -> list[_Shard]:
    """All shards of the file that `opened` belongs to, in order."""
    number, count = opened.split()
    paths = _shard_paths(opened.source.path, number, count)
    shards = [opened if i == number else _Shard(path) for i, path in enumerate(paths)]
    for i, shard in enumerate(shards):
        if shard.split() != (i, count):
            its_number, its_count = shard.split()
            raise shard.source.error(
                f"metadata {SPLIT_NO!r}",
                f"shard {its_number + 1} of {its_count}",
                f"shard {i + 1} of {count}, as its name says",
            )
    return shards


def _shard_paths(path: Path, number: int, count: int) -> list[Path]:
    """Paths of all `count` shards, of which `path` is number `number` (from 0).

    Raises GGUFError where the file's name says otherwise or a shard is missing.
    """
    if not 1 <= count <= _MAX_SHARDS:
        raise GGUFError(path, f"metadata {SPLIT_COUNT!r}", f"{count:,}", f"1 to {_MAX_SHARDS:,}")
    if not 0 <= number < count:
        raise GGUFError(
            path, f"metadata {SPLIT_NO!r}", f"{number:,}", f"less than the {count:,} shards"
        )
    if count == 1:
        return [path]
    match = _NAME.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise GGUFError(
            path,
            "name",
            f"{path.name!r} for shard {number + 1} of {count}",
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf",
            "the other shards are found by name: give all of them their names back",
        )
    paths = [
        path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}{match['suffix']}")
        for i in range(count)
    ]
    missing = [shard for shard in paths if not shard.exists()]
    if missing:
        raise GGUFError(
            path,
            "shards",
            f"{count - len(missing)} of {count}, without {missing[0].name}",
            "all of them in one folder",
            "download the missing ones",
        )
    return paths


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
