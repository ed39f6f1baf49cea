"""Writing GGUF files (`runtime.gguf.layout` draws them): the header, with metadata of another file.

Values are copied as bytes: so a copy has all that the format can hold, also what gguf-py's writer
refuses (empty and nested arrays, strings that are not UTF-8), and a vocabulary costs no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..ops.types import QUANT_TYPES, row_bytes
from ..runtime.attend.encoders.sidecar import is_hash_key
from ..runtime.gguf import Metadata
from ..runtime.gguf.layout import DEFAULT_ALIGNMENT, MAGIC, U32, U64, ValueType
from ..runtime.gguf.metadata import Entry
from ..runtime.memory import human_bytes
from ..system.files import disk_free
from .errors import ConvertError

VERSION = 3


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to write: its type, and its shape in NumPy's order."""

    name: str
    type_name: str
    shape: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all its matrices."""
        return math.prod(self.shape[:-1])

    @property
    def n_bytes(self) -> int:
        return self.n_rows * row_bytes(QUANT_TYPES[self.type_name], self.shape[-1])


def check_room(folder: Path, n_bytes: int, purpose: str) -> None:
    """`ConvertError` where a disk has no room for `n_bytes`."""
    free = disk_free(folder)
    if n_bytes > free:
        raise ConvertError(
            f"{purpose} needs {human_bytes(n_bytes)} and {folder} has {human_bytes(free)} free"
        )


def pad(file: BinaryIO, alignment: int = DEFAULT_ALIGNMENT) -> None:
    """Write zeros up to where the next tensor may begin."""
    file.write(bytes(-file.tell() % alignment))


def padded(n_bytes: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-n_bytes // alignment) * alignment


def value_bytes(value: int | str | Sequence[str]) -> bytes:
    """Type and value of a metadata entry: a u32, a string, or an array of strings."""
    if isinstance(value, int):
        return U32.pack(ValueType.U32) + U32.pack(value)
    if isinstance(value, str):
        return U32.pack(ValueType.STRING) + _string(value.encode("utf-8", "surrogateescape"))
    head = U32.pack(ValueType.ARRAY) + U32.pack(ValueType.STRING) + U64.pack(len(value))
    return head + b"".join(_string(text.encode("utf-8", "surrogateescape")) for text in value)


def copied_metadata(metadata: Metadata) -> dict[str, bytes]:
    """Types and values by key, as in the file that they were read from.

    Without keys that are true of that file only: its place among shards, and encoders, which
    belong to its weights.
    """
    return {
        key: U32.pack(metadata.entry(key).kind) + _copied(metadata, metadata.entry(key))
        for key in metadata
        if not key.startswith("split.") and not is_hash_key(key)
    }


def header(
    metadata: Mapping[str, bytes], tensors: Sequence[TensorPlan], alignment: int = DEFAULT_ALIGNMENT
) -> bytes:
    """All that comes before the tensors, padding included.

    metadata: types and values by key, from the functions above. The tensors must follow in this
    order, each padded to the alignment.
    """
    parts = [MAGIC, U32.pack(VERSION), U64.pack(len(tensors)), U64.pack(len(metadata))]
    for key, value in metadata.items():
        parts += _string(key.encode()), value
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        parts += _string(tensor.name.encode()), U32.pack(len(dims)), *map(U64.pack, dims)
        parts += U32.pack(QUANT_TYPES[tensor.type_name].ggml_id), U64.pack(offset)
        offset += padded(tensor.n_bytes, alignment)
    data = b"".join(parts)
    return data.ljust(padded(len(data), alignment), b"\0")


def _string(data: bytes) -> bytes:
    return U64.pack(len(data)) + data


def _copied(metadata: Metadata, entry: Entry) -> bytes:
    """The value of an entry; counts of version 1, which are shorter, are widened."""
    if entry.kind is ValueType.STRING:
        return _string(metadata.raw(entry)[metadata.count_bytes :])
    if entry.item is None:
        return metadata.raw(entry)
    head = U32.pack(entry.item) + U64.pack(entry.count)
    if entry.item is ValueType.ARRAY:
        return head + b"".join(_copied(metadata, part) for part in entry.parts)
    if entry.starts is None or metadata.count_bytes == U64.size:
        return head + metadata.raw(entry)
    ends = [*entry.starts[1:].tolist(), entry.end]
    raw, first = metadata.raw(entry), entry.start
    skip = metadata.count_bytes - first
    return head + b"".join(
        _string(raw[start + skip : end - first]) for start, end in zip(entry.starts.tolist(), ends)
    )
