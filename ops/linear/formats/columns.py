"""Reading 16 rows of a quantised matrix at once, one row per lane.

Rows as in a file are transposed in registers. Interleaved rows (`decode.interleaved`) already have
the order of the lanes.
"""

from __future__ import annotations

from ....jit.simd import I32, emit_join, read, shuffle, vty
from ...types import ROWS_SIDE_BY_SIDE
from .pieces import Columns, SideBySide, gather

ROWS = ROWS_SIDE_BY_SIDE


def _transpose_8(b, rows):
    """8 vectors of 8 words -> 8 vectors, in three rounds of shuffles.

    All but the last round stay inside 128-bit halves, where AVX2 shuffles are cheapest.
    """
    low = [0, 8, 1, 9, 4, 12, 5, 13]
    words = [
        shuffle(b, rows[i + k], [lane + 2 * half for lane in low], rows[i + k + 1])
        for i in (0, 4)
        for k in (0, 2)
        for half in (0, 1)
    ]
    pairs = []
    for i in (0, 4):
        for k in (0, 1):
            for half in (0, 2):
                lanes = [0 + half, 1 + half, 8 + half, 9 + half]
                lanes += [lane + 4 for lane in lanes]
                pairs.append(shuffle(b, words[i + k], lanes, words[i + k + 2]))
    out = [shuffle(b, pairs[j], [0, 1, 2, 3, 8, 9, 10, 11], pairs[j + 4]) for j in range(4)]
    out += [shuffle(b, pairs[j], [4, 5, 6, 7, 12, 13, 14, 15], pairs[j + 4]) for j in range(4)]
    return out


def transposed(b, rows):
    """16 vectors of 8 words, one per row -> 8 vectors of 16 words, one row per lane."""
    return [
        emit_join(b, *both) for both in zip(_transpose_8(b, rows[:8]), _transpose_8(b, rows[8:]))
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
    """Of 16 blocks at the pointers `rows`. `done` keeps what was transposed, for other j."""

    def __init__(self, j, rows, done):
        super().__init__(j)
        self.rows, self.done = rows, done

    def word(self, b, offset, k):
        if offset not in self.done:
            rows = [read(b, row, vty(I32, 4), offset) for row in self.rows]
            halves = _transposed_4(b, rows[:8]), _transposed_4(b, rows[8:])
            self.done[offset] = [emit_join(b, *both) for both in zip(*halves)]
        return self.done[offset][k]

    def lone_word(self, b, offset):
        if offset not in self.done:
            self.done[offset] = gather(b, self.rows, I32, offset)
        return self.done[offset]


class Interleaved(Columns):
    """Of 16 interleaved blocks (`SideBySide`) at a pointer."""

    def __init__(self, j, pointer):
        super().__init__(j)
        self.blocks = SideBySide(pointer, ROWS)

    def word(self, b, offset, k):
        return self.blocks.read(b, I32, offset + 4 * k)

    def lone_word(self, b, offset):
        return self.blocks.read(b, I32, offset)
