"""Files of selections: which tokens each layer attended to, step by step.

    header   one line of JSON: {"kvarn_selections": 1, "n_layers": L, "n_kv_heads": J}
    record   u32 layer  |  u32 tokens stored  |  u32 n  |  J x u32 count  |  n bytes: zlib of u32,
             for each KV head the differences between its ascending positions, the first from 0

One record for each layer and step in which a method chose, in the order of computation; all numbers
are little-endian. A token attended to takes about a byte and a half.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...system.files import new_file
from ...system.reading import read_file
from .base import AttendError, BoundAttend

U32 = NDArray[np.uint32]

_VERSION = "kvarn_selections"
_HEAD = struct.Struct("<III")
_DAMAGE = ValueError, LookupError, TypeError, RecursionError, struct.error, zlib.error
_MOST_BYTES = 8 << 30
_MOST = 1 << 12  # layers, and KV heads of one
_LEVEL = 1  # of zlib: differences are small numbers, a higher level gains little


@dataclass(frozen=True, slots=True)
class Selection:
    """What one layer attended to in one step: ascending positions for each KV head."""

    stored: int
    lists: tuple[U32, ...]


@dataclass(frozen=True)
class Selections:
    """The selections of a file, by layer and in the order of steps."""

    n_kv_heads: int
    layers: tuple[tuple[Selection, ...], ...]

    @property
    def most(self) -> int:
        """The longest list."""
        lists = (len(one) for layer in self.layers for step in layer for one in step.lists)
        return max(lists, default=0)

    @staticmethod
    def read(path: str | Path) -> Selections:
        """Read a file; `AttendError` if it holds no selections or is damaged."""
        try:
            data = read_file(Path(path), _MOST_BYTES)
        except OSError as error:
            raise AttendError(f"selections {path}: {error.strerror or error}") from error
        try:
            return _parsed(data)
        except _DAMAGE as error:
            raise AttendError(f"{path} holds no selections, or is damaged: {error}") from error


class SelectionWriter:
    """Writes selections to an open file."""

    def __init__(self, file: BinaryIO, n_layers: int, n_kv_heads: int) -> None:
        header = {_VERSION: 1, "n_layers": n_layers, "n_kv_heads": n_kv_heads}
        self._file = file
        file.write(json.dumps(header).encode() + b"\n")

    def add(self, layer: int, stored: int, lists: U32, counts: NDArray[np.int64]) -> None:
        """Add a step: of `stored` tokens, KV head j attended to lists[j, : counts[j]]."""
        gaps = [np.diff(one[:n], prepend=np.uint32(0)) for one, n in zip(lists, counts)]
        body = zlib.compress(np.concatenate(gaps).astype("<u4").tobytes(), _LEVEL)
        self._file.write(_HEAD.pack(layer, stored, len(body)))
        self._file.write(counts.astype("<u4").tobytes() + body)


@contextmanager
def selection_file(path: str | Path, n_layers: int, n_kv_heads: int) -> Iterator[SelectionWriter]:
    """A writer of a file that takes its name when the block ends. After an error in the block, the
    file holds the steps before it, each whole. Raises what `new_file` raises."""
    with ExitStack() as stack:
        part = stack.enter_context(new_file(Path(path)))
        writer = SelectionWriter(stack.enter_context(part.open("r+b")), n_layers, n_kv_heads)
        finish = stack.pop_all()
    try:
        yield writer
    finally:
        finish.close()


@contextmanager
def recording(
    attend: BoundAttend, path: str | Path, n_layers: int, n_kv_heads: int
) -> Iterator[None]:
    """Write what a method with `selects` chooses to a file, until the block ends."""
    with selection_file(path, n_layers, n_kv_heads) as writer:
        attend.writer = writer
        try:
            yield
        finally:
            attend.writer = None


def _parsed(data: bytes) -> Selections:
    first, _, _ = data.partition(b"\n")
    header = json.loads(first)
    if header[_VERSION] != 1:
        raise ValueError(f"version {header[_VERSION]}, expected 1")
    n_layers, n_kv_heads = int(header["n_layers"]), int(header["n_kv_heads"])
    if not (0 < n_layers <= _MOST and 0 < n_kv_heads <= _MOST):
        raise ValueError(f"{n_layers} layers of {n_kv_heads} KV heads")
    layers: dict[int, list[Selection]] = {i: [] for i in range(n_layers)}
    at = len(first) + 1
    while at < len(data):
        layer, stored, n = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        counts = np.frombuffer(data, "<u4", n_kv_heads, at).astype(np.int64)
        at += counts.size * 4
        layers[layer].append(Selection(stored, _lists(data[at : at + n], counts, stored)))
        at += n
    return Selections(n_kv_heads, tuple(map(tuple, layers.values())))


def _lists(body: bytes, counts: NDArray[np.int64], stored: int) -> tuple[U32, ...]:
    """The positions of each KV head; ValueError unless they ascend and lie below `stored`."""
    n_bytes = 4 * int(counts.sum())
    stream = zlib.decompressobj()
    raw = stream.decompress(body, n_bytes + 1)
    if len(raw) != n_bytes or not stream.eof:
        raise ValueError("a record ends early or late")
    gaps = np.split(np.frombuffer(raw, "<u4").astype(np.int64), np.cumsum(counts)[:-1])
    lists = [np.cumsum(one) for one in gaps]
    if any((one[1:] < 1).any() for one in gaps) or any((one >= stored).any() for one in lists):
        raise ValueError("a record names tokens that are not there")
    return tuple(one.astype(np.uint32) for one in lists)
