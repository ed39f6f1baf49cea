"""Reads 16 rows of a quantised matrix at once, one row per lane.

Rows in a file's order are transposed in registers. Interleaved rows (`decode.interleaved`) already
have the order of the lanes.
"""

from __future__ import annotations

from ....jit.simd import I32, emit_join, emit_transpose_8, read, shuffle, vty
from ...types import ROWS_SIDE_BY_SIDE as ROWS
from .pieces import Columns, SideBySide, gather


def transposed(b, rows):
    """16 vectors of 8 words, one per row -> 8 vectors of 16 words, one row per lane."""
    return [
        emit_join(b, *both)
        for both in zip(emit_transpose_8(b, rows[:8]), emit_transpose_8(b, rows[8:]))
    ]


def words_of_rows(b, rows, stride):
    """32 bytes of 16 rows, `stride` bytes apart -> 8 vectors of 16 words."""
    return transposed(b, [read(b, rows, vty(I32, 8), r * stride) for r in range(ROWS)])


def _transposed_4(b, rows):
    """8 vectors of 4 words, one per row -> 4 vectors of 8 words; inside 128-bit halves."""
    pairs = [emit_join(b, rows[i], rows[i + 4]) for i in range(4)]
    words = []
    for low in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]):
        left, right = (shuffle(b, pairs[i], low, pairs[i + 1]) for i in (0, 2))
        for lanes in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]):
            words.append(shuffle(b, left, lanes, right))
    return words


class Transposed(Columns):
    """Columns of 16 blocks at the pointers `rows`. `transposed` caches words for other j."""

    def __init__(self, j, rows, transposed):
        super().__init__(j)
        self.rows, self.transposed = rows, transposed

    def word(self, b, offset, k):
        if offset not in self.transposed:
            rows = [read(b, row, vty(I32, 4), offset) for row in self.rows]
            halves = _transposed_4(b, rows[:8]), _transposed_4(b, rows[8:])
            self.transposed[offset] = [emit_join(b, *both) for both in zip(*halves)]
        return self.transposed[offset][k]

    def lone_word(self, b, offset):
        if offset not in self.transposed:
            self.transposed[offset] = gather(b, self.rows, I32, offset)
        return self.transposed[offset]


class Interleaved(Columns):
    """Columns of 16 interleaved blocks (`SideBySide`) at a pointer."""

    def __init__(self, j, pointer):
        super().__init__(j)
        self.blocks = SideBySide(pointer, ROWS)

    def word(self, b, offset, k):
        return self.blocks.read(b, I32, offset + 4 * k)

    def lone_word(self, b, offset):
        return self.blocks.read(b, I32, offset)
