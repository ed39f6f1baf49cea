"""Files of selections: which tokens each layer attended to, step by step.

    header   one line of JSON: {"kvarn_selections": 1, "n_layers": L, "n_kv_heads": J}
    record   u32 layer  |  u32 tokens stored  |  u32 n  |  J x u32 count  |  n bytes: zlib of
             u32 steps from each position to the next, ascending, one KV head after the other,
             each from 0

One record for each layer and step in which a method chose, in the order of computation; all numbers
little-endian. About a byte and a half for each token attended to.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...system.files import new_file
from ...system.reading import read_file
from .base import AttendError, BoundAttend

if TYPE_CHECKING:
    from typing import Self

U32 = NDArray[np.uint32]

_VERSION = "kvarn_selections"
_HEAD = struct.Struct("<III")
_MOST_BYTES = 8 << 30
_MOST = 1 << 12  # layers, and KV heads of one
_LEVEL = 1  # of zlib: steps are small numbers, more effort gains little


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
        """All of a file; `AttendError` where it holds no selections or is damaged."""
        try:
            data = read_file(Path(path), _MOST_BYTES)
        except OSError as error:
            raise AttendError(f"selections {path}: {error.strerror or error}") from error
        try:
            return _parsed(data)
        except (
            ValueError,
            LookupError,
            TypeError,
            RecursionError,
            struct.error,
            zlib.error,
        ) as error:
            raise AttendError(f"{path} holds no selections, or is damaged: {error}") from error


class SelectionWriter:
    """Writes selections while it is open, to a file that then takes its name.

    What was recorded before an error is kept: every step of it is whole. Raises what `new_file`
    raises.
    """

    def __init__(self, path: str | Path, n_layers: int, n_kv_heads: int) -> None:
        self._path = Path(path)
        header = {_VERSION: 1, "n_layers": n_layers, "n_kv_heads": n_kv_heads}
        self._header = json.dumps(header).encode() + b"\n"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            part = stack.enter_context(new_file(self._path))
            self._file = stack.enter_context(part.open("r+b"))
            self._file.write(self._header)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def add(self, layer: int, stored: int, lists: U32, counts: NDArray[np.int64]) -> None:
        """Add a step: of `stored` tokens, KV head j attended to lists[j, : counts[j]]."""
        steps = [np.diff(one[:n], prepend=np.uint32(0)) for one, n in zip(lists, counts)]
        body = zlib.compress(np.concatenate(steps).astype("<u4").tobytes(), _LEVEL)
        self._file.write(_HEAD.pack(layer, stored, len(body)))
        self._file.write(counts.astype("<u4").tobytes() + body)


@contextmanager
def recording(
    attend: BoundAttend, path: str | Path, n_layers: int, n_kv_heads: int
) -> Iterator[None]:
    """While it is open, what a method that selects has chosen is written to a file."""
    with SelectionWriter(path, n_layers, n_kv_heads) as writer:
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
    """The positions of each KV head; ValueError where they are not ascending ones of `stored`."""
    n_bytes = 4 * int(counts.sum())
    stream = zlib.decompressobj()
    raw = stream.decompress(body, n_bytes + 1)
    if len(raw) != n_bytes or not stream.eof:
        raise ValueError("a record ends early or late")
    steps = np.split(np.frombuffer(raw, "<u4").astype(np.int64), np.cumsum(counts)[:-1])
    lists = [np.cumsum(one) for one in steps]
    if any((one[1:] < 1).any() for one in steps) or any((one >= stored).any() for one in lists):
        raise ValueError("a record names tokens that are not there")
    return tuple(one.astype(np.uint32) for one in lists)
