"""Rearranging lanes: nibbles, joins, halves, transposition, and sums of many vectors at once."""

from typing import Any

from llvmlite import ir
from numba import types

from .types import (
    Vec,
    const,
    emits,
    emits_by,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    shuffle,
    splat,
)


def emit_nibbles(b: ir.IRBuilder, v: ir.Value) -> ir.Value:
    """n bytes -> 2n: the low nibbles first, then the high ones (GGUF's order)."""
    low, high = b.and_(v, const(v.type, 15)), b.lshr(v, const(v.type, 4))
    return shuffle(b, low, range(2 * v.type.count), high)


def emit_join(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two vectors of n lanes -> one of 2n."""
    return shuffle(b, low, range(2 * low.type.count), high)


def _bytes(v: Any) -> bool:
    return isinstance(v, Vec) and v.elem == "i8"


nibbles = emits_by(lambda v: Vec("i8", 2 * v.n) if _bytes(v) else None)(emit_nibbles)
low_nibbles = emits_by(lambda v: v if _bytes(v) else None)(
    lambda b, v: b.and_(v, const(v.type, 15))
)
high_nibbles = emits_by(lambda v: v if _bytes(v) else None)(
    lambda b, v: b.lshr(v, const(v.type, 4))
)
join = emits_by(
    lambda lo, hi: Vec(lo.elem, 2 * lo.n) if isinstance(lo, Vec) and lo == hi else None
)(emit_join)
as_i8x32 = emits(i8x32, i8x16, i8x16)(emit_join)
as_i8x64 = emits(i8x64, i8x32, i8x32)(emit_join)
low_half = emits_by(lambda v: Vec(v.elem, v.n // 2) if isinstance(v, Vec) else None)(
    lambda b, v: shuffle(b, v, range(v.type.count // 2))
)
high_half = emits_by(lambda v: Vec(v.elem, v.n // 2) if isinstance(v, Vec) else None)(
    lambda b, v: shuffle(b, v, range(v.type.count // 2, v.type.count))
)
zip_f32 = emits(f32x16, types.float32, types.float32)(  # 8 lanes of x, 8 of y
    lambda b, x, y: shuffle(b, splat(b, x, 8), range(16), splat(b, y, 8))
)


def transpose(b: ir.IRBuilder, *rows: ir.Value) -> ir.Value:
    """16 rows of 8 words -> 8 vectors of 16 words in one value, by four perfect shuffles.

    Word 16 j + r of the result is word j of row r.
    """
    order = [k // 2 + (k % 2) * 8 for k in range(16)]
    zipped = [shuffle(b, rows[i], order, rows[i + 8]) for i in range(8)]
    for half in (4, 2, 1):
        out, lo = [], [k // 2 + (k % 2) * 16 for k in range(16)]
        for base in range(0, 8, 2 * half):
            for i in range(base, base + half):
                pair = zipped[i], zipped[i + half]
                out.append((i, shuffle(b, pair[0], lo, pair[1])))
                out.append((i + half, shuffle(b, pair[0], [k + 8 for k in lo], pair[1])))
        zipped = [x for _, x in sorted(out, key=lambda p: p[0])]
    zipped = [zipped[int(f"{j:03b}", 2)] for j in range(8)]
    while len(zipped) > 1:
        zipped = [
            shuffle(b, zipped[i], range(2 * zipped[i].type.count), zipped[i + 1])
            for i in range(0, len(zipped), 2)
        ]
    return zipped[0]


class Tree:
    """Sums n vectors of n lanes fed one by one: lane t of `result` is the sum of vector t.

    Joins as soon as two partial results of a level exist, so few are alive at once.
    """

    def __init__(self, b: ir.IRBuilder, lanes: int = 16) -> None:
        self.b, self.lanes, self.levels = b, lanes, {}  # type: ignore[var-annotated]

    def feed(self, x: ir.Value, d: int = 1) -> None:
        """The next vector, in order of the lane that its sum shall have."""
        if d not in self.levels:
            self.levels[d] = x
            return
        y, x = x, self.levels.pop(d)
        here = [k + (self.lanes if k & d else 0) for k in range(self.lanes)]
        there = [(k ^ d) + (self.lanes if k & d else 0) for k in range(self.lanes)]
        halves = shuffle(self.b, x, here, y), shuffle(self.b, x, there, y)
        self.feed(self.b.fadd(*halves), 2 * d)

    @property
    def result(self) -> ir.Value:
        """The sums, once as many vectors as lanes have been fed."""
        return self.levels[self.lanes]
