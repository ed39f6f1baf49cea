"""Lengthens the state of a llama.cpp context by repeating its KV cells, to measure long contexts.

The state of one sequence, little-endian (llama-context.cpp, `state_seq_get_data`):

    u32 magic | i32 sequence | u32 1 | u32 cells
    cells x (i32 position, u32 1, i32 sequence)
    u32 whether V is transposed | u32 layers
    layers x (i32 type of K, u64 bytes a cell | cells x K)
    layers x (i32 type of V, u64 bytes a cell | cells x V)
        or   (i32 type of V, u32 bytes an element, u32 elements | elements x cells x element)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvarn.ops.arrays import U8
from kvarn.system.errors import KvarnError

MAGIC = 0xAF143CD8
CELL_BYTES = 12


@dataclass(frozen=True)
class _Part:
    """Bytes [rows][cells][item] of the state; with `n_cells` 0, bytes that stay as they are."""

    data: U8
    n_cells: int = 0

    def n_bytes(self, n_tokens: int) -> int:
        return self.data.nbytes // self.n_cells * n_tokens if self.n_cells else self.data.nbytes

    def write(self, out: U8, n_tokens: int) -> None:
        """Write it to `out`, with the cells repeated up to `n_tokens`."""
        if not self.n_cells:
            out[:] = self.data
            return
        rows, _, item = self.data.shape
        cells = out.reshape(rows, n_tokens, item)
        for first in range(0, n_tokens, self.n_cells):
            some = cells[:, first : first + self.n_cells]
            some[:] = self.data[:, : some.shape[1]]


def repeated(state: U8, n_tokens: int) -> U8:
    """The state with its cells repeated up to `n_tokens`, at positions 0, 1, ….

    Raises `KvarnError` where the bytes are not laid out as above.
    """
    parts = list(_parts(state))
    out = np.empty(sum(part.n_bytes(n_tokens) for part in parts), np.uint8)
    at = 0
    for i, part in enumerate(parts):
        place = out[at : at + part.n_bytes(n_tokens)]
        part.write(place, n_tokens)
        if i == 0:
            place.view("<u4")[3] = n_tokens
        elif i == 1:
            place.view("<i4")[:: CELL_BYTES // 4] = np.arange(n_tokens)
        at += len(place)
    return out


def _parts(state: U8) -> Iterator[_Part]:
    """The parts of a state: its head, its cells, then heads and values of K and V."""
    cursor = _Cursor(state)
    magic, _, streams, cells = cursor.words(0, 4)
    yield _Part(cursor.take(16))
    found = cursor.take(CELL_BYTES * cells).reshape(1, cells, CELL_BYTES)
    if magic != MAGIC or streams != 1 or cells == 0 or (found.view("<u4")[..., 1] != 1).any():
        raise KvarnError("llama.cpp's state has another layout than expected")
    yield _Part(found, cells)
    transposed, layers = cursor.words(0, 2)
    yield _Part(cursor.take(8))
    for i in range(2 * layers):
        if i >= layers and transposed:
            item, rows = cursor.words(4, 2)
        else:
            item, rows = cursor.words(4, 1)[0], 1
        yield _Part(cursor.take(12))
        yield _Part(cursor.take(rows * cells * item).reshape(rows, cells, item), cells)
    if cursor.at != len(state):
        raise KvarnError("llama.cpp's state has another layout than expected")


class _Cursor:
    """A place in the state."""

    def __init__(self, state: U8) -> None:
        self.state, self.at = state, 0

    def words(self, offset: int, n: int) -> list[int]:
        """n u32 that stand `offset` bytes further on."""
        first = self.at + offset
        if first + 4 * n > len(self.state):
            raise KvarnError("llama.cpp's state ends too early")
        words: list[int] = self.state[first : first + 4 * n].view("<u4").tolist()
        return words

    def take(self, n: int) -> U8:
        """The next n bytes."""
        if self.at + n > len(self.state):
            raise KvarnError("llama.cpp's state ends too early")
        taken = self.state[self.at : self.at + n]
        self.at += n
        return taken
