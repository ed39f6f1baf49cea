"""Files of selections: which tokens each layer attended to, step by step.

    header   one line of JSON: {"kvarn_selections": 2, "n_layers": L, "n_kv_heads": J,
             "model": its name, "fingerprint": of its file, "method": with its options}
    record   u32 layer  |  u32 tokens stored  |  u32 n  |  J x u32 count  |  n bytes: zlib of u32,
             for each KV head the differences between its ascending positions, the first from 0
    …
    tokens   u32 2^32 - 1  |  u32 T  |  u32 n  |  n bytes: zlib of T u32, the ids of the context

One record for each layer and step in which a method chose, in the order of computation; the tokens
last, as they are when recording ends. All numbers are little-endian. A token attended to takes
about a byte and a half.

A step reads the token at position `stored` - 1. Where guesses of a draft were wrong, or a context
was cut, later records of the same layer and `stored` take the place of earlier ones.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...ops.arrays import I64, U32
from ...system.files import new_file
from ...system.reading import read_file
from ..memory import available_bytes
from .base import AttendError, BoundAttend

_KEY, _VERSION = "kvarn_selections", 2
_HEAD = struct.Struct("<III")
_DAMAGE = ValueError, LookupError, TypeError, RecursionError, struct.error, zlib.error
_MOST_BYTES = 8 << 30
_MOST = 1 << 12  # layers, and KV heads of one
_MOST_TOKENS = 1 << 28
_TOKENS = 0xFFFFFFFF  # in place of a layer
_NUMBER_BYTES = 32  # of memory for each token that is named, while a record is read
_LEVEL = 1  # of zlib: differences are small numbers, a higher level gains little


@dataclass(frozen=True, slots=True)
class Source:
    """What selections were recorded from."""

    n_layers: int
    n_kv_heads: int
    model: str
    fingerprint: str
    method: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What one layer attended to in one step: ascending positions for each KV head."""

    stored: int
    lists: tuple[U32, ...]


@dataclass(frozen=True)
class Selections:
    """The selections of a file, by layer and in the order of steps.

    tokens: ids of the context, uint32 (T,).
    """

    source: Source
    layers: tuple[tuple[Selection, ...], ...]
    tokens: U32

    @property
    def most(self) -> int:
        """The longest list."""
        lists = (len(tokens) for layer in self.layers for step in layer for tokens in step.lists)
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

    def __init__(self, file: BinaryIO, source: Source) -> None:
        self._file = file
        file.write(json.dumps({_KEY: _VERSION, **asdict(source)}).encode() + b"\n")

    def add(self, layer: int, stored: int, lists: U32, counts: I64) -> None:
        """Add a step: of `stored` tokens, KV head j attended to lists[j, : counts[j]]."""
        gaps = [np.diff(row[:n], prepend=np.uint32(0)) for row, n in zip(lists, counts)]
        body = zlib.compress(np.concatenate(gaps).astype("<u4").tobytes(), _LEVEL)
        self._file.write(_HEAD.pack(layer, stored, len(body)))
        self._file.write(counts.astype("<u4").tobytes() + body)

    def finish(self, tokens: Sequence[int]) -> None:
        """Add the ids of the context, after all steps."""
        body = zlib.compress(np.asarray(tokens, "<u4").tobytes(), _LEVEL)
        self._file.write(_HEAD.pack(_TOKENS, len(tokens), len(body)) + body)


@contextmanager
def selection_file(
    path: str | Path, source: Source, tokens: Sequence[int]
) -> Iterator[SelectionWriter]:
    """A writer of a file that takes its name when the block ends. After an error in the block, the
    file holds the steps before it, each whole. tokens: of the context, as they are when the block
    ends. Raises what `new_file` raises."""
    with ExitStack() as stack:
        part = stack.enter_context(new_file(Path(path)))
        writer = SelectionWriter(stack.enter_context(part.open("r+b")), source)
        stack.callback(writer.finish, tokens)
        finish = stack.pop_all()
    try:
        yield writer
    finally:
        finish.close()


@contextmanager
def recording(
    attend: BoundAttend, path: str | Path, source: Source, tokens: Sequence[int]
) -> Iterator[None]:
    """Write the choices of a method with `selects` to a file, until the block ends."""
    with selection_file(path, source, tokens) as writer:
        attend.observer = writer
        try:
            yield
        finally:
            attend.observer = None


def _parsed(data: bytes) -> Selections:
    first, _, _ = data.partition(b"\n")
    header = json.loads(first)
    if (version := header.pop(_KEY)) != _VERSION:
        raise ValueError(f"version {version}, expected {_VERSION}")
    source = _source(header)
    layers: dict[int, list[Selection]] = {i: [] for i in range(source.n_layers)}
    at, tokens, left = len(first) + 1, None, available_bytes() // _NUMBER_BYTES
    while at < len(data):
        layer, stored, n = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if tokens is not None:
            raise ValueError("a record follows the last one")
        if layer == _TOKENS and stored <= _MOST_TOKENS:
            tokens = _unpacked(data[at : at + n], stored)
        else:
            counts = np.frombuffer(data, "<u4", source.n_kv_heads, at).astype(np.int64)
            at += counts.size * 4
            left -= int(counts.sum())
            if left < 0:
                raise ValueError("it names more tokens than memory has room for")
            layers[layer].append(Selection(stored, _lists(data[at : at + n], counts, stored)))
        at += n
    if tokens is None:
        raise ValueError("it ends before its tokens")
    return Selections(source, tuple(map(tuple, layers.values())), tokens)


def _source(header: dict[str, Any]) -> Source:
    source = Source(**header)
    sizes = source.n_layers, source.n_kv_heads
    if not all(isinstance(n, int) and 0 < n <= _MOST for n in sizes):
        raise ValueError(f"{sizes[0]!r:.50} layers of {sizes[1]!r:.50} KV heads")
    for text in (source.model, source.fingerprint, source.method):
        if not isinstance(text, str):
            raise TypeError(f"expected a text, found {text!r:.50}")
    return source


def _unpacked(body: bytes, n: int) -> U32:
    """`n` numbers; ValueError if there are fewer or more."""
    stream = zlib.decompressobj()
    raw = stream.decompress(body, 4 * n + 1)
    if len(raw) != 4 * n or not stream.eof:
        raise ValueError("a record ends early or late")
    return np.frombuffer(raw, "<u4")


def _lists(body: bytes, counts: I64, stored: int) -> tuple[U32, ...]:
    """The positions of each KV head; ValueError unless they ascend and lie below `stored`."""
    if counts.max() > stored:
        raise ValueError(f"a record names {counts.max():,} of {stored:,} tokens")
    numbers = _unpacked(body, int(counts.sum())).astype(np.int64)
    gaps = np.split(numbers, np.cumsum(counts)[:-1])
    lists = [np.cumsum(row) for row in gaps]
    if any((row[1:] < 1).any() for row in gaps) or any((row >= stored).any() for row in lists):
        raise ValueError("a record names tokens that are not there")
    return tuple(row.astype(np.uint32) for row in lists)
