"""32 columns of 16 rows by a few tokens, in integers: the parts of register tiles.

A step takes 4 columns of 16 rows, broadcasts 4 activations of each token and multiplies. AVX2 adds
products in 16 bits as long as they cannot overflow (`pairs_run`) before it widens them to 32 bits,
which is when integer scales are multiplied in for free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....jit.simd import (
    I8,
    I16,
    I32,
    const,
    emit_join,
    pair_sums_i16,
    pair_sums_u7s,
    read,
    shuffle,
    splat,
    vty,
)
from ..dots import AVX2, dot_onto
from ..formats import Format
from ..formats.pieces import Builder, Value, pinned

ACC = vty(I32, 16)
BYTES = vty(I8, 32)
HALVES = (0, 32)  # bytes into 16 rows: AVX2 takes 8 rows at a time
Codes = Callable[[int], Value]  # the bytes of columns 4 j .. 4 j + 3


def pairs_run(f: Format) -> int:
    """The number of 16-bit pair sums of a lane that share a scale and add without overflow."""
    run = 1
    while run * 2 <= f.grain // 4 and run * 2 * (2 * 127 * f.top) <= 32767:
        run *= 2
    return run


def _broadcast(b, x, j, ty):
    """Word j of a token's activations (4 of int8, 2 of int16) in all rows of a vector."""
    n_words = ty.count * ty.element.width // 32
    return b.bitcast(splat(b, read(b, x, I32, 4 * j), n_words), ty)


def _add(b, sums, key, value):
    sums[key] = pinned(b, b.add(sums[key], value)) if key in sums else value


def _unit_pairs(b, f: Format, codes_of, x, scales):
    """AVX2, unsigned codes: 32 columns -> <16 x i32> for each token, integer scales included."""
    totals: dict[Any, Any] = {}
    run = pairs_run(f)
    for start in range(0, 8, run):
        sums: dict[Any, Any] = {}
        for j in range(start, start + run):
            four = codes_of(j)
            codes = [shuffle(b, four, range(half, half + 32)) for half in HALVES]
            for t, xt in enumerate(x):
                xj = _broadcast(b, xt, j, BYTES)
                for half, q in zip(HALVES, codes):
                    _add(b, sums, (t, half), pair_sums_u7s(b, q, xj))
        for half in HALVES:
            factor = const(vty(I16, 16), 1)
            if scales is not None:
                factor = read(b, scales, factor.type, start * 4 // f.grain * 64 + half)
            for t in range(len(x)):
                _add(b, totals, (t, half), pair_sums_i16(b, sums[t, half], factor))
    return [emit_join(b, *(totals[t, half] for half in HALVES)) for t in range(len(x))]


def unit_of_words(b: Builder, w: Value, x: Sequence[Value], scales: Value | None) -> list[Value]:
    """AVX2, signed codes as words: 32 columns -> <16 x i32> for each token, scales included."""
    totals: dict[Any, Any] = {}
    for j in range(16):
        codes = [read(b, w, vty(I16, 16), 64 * j + half) for half in HALVES]
        for t, xt in enumerate(x):
            xj = _broadcast(b, xt, j, vty(I16, 16))
            for half, q in zip(HALVES, codes):
                _add(b, totals, (t, half), pair_sums_i16(b, q, xj))
    out = [emit_join(b, *(totals[t, half] for half in HALVES)) for t in range(len(x))]
    if scales is None:
        return out
    factor = read(b, scales, ACC)
    return [b.mul(total, factor) for total in out]


def _unit_plain(b, f: Format, codes_of, x, scales):
    """As `_unit_pairs`, for variants whose dot products give 32 bits."""
    totals = [const(ACC, 0)] * len(x)
    for start in range(0, 8, f.grain // 4):
        [sums] = grain_sums(b, f, [codes_of], x, start)
        if scales is not None:
            factor = read(b, scales, ACC, start * 4 // f.grain * 64)
            sums = [b.mul(s, factor) for s in sums]
        totals = [b.add(total, s) for total, s in zip(totals, sums)]
    return totals


def grain_sums(
    b: Builder,
    f: Format,
    panels: Sequence[Codes],
    x: Sequence[Value],
    start: int,
    begin: Sequence[Value] | None = None,
) -> list[list[Value]]:
    """Sums over the columns of one scale, from column 4 * start: for each panel, of each token.

    begin: what each token's sums start at, <16 x i32>; without it, 0. Not for AVX2. All panels use
    the same broadcast, which halves the loads where there are two.
    """
    sums = [list(begin or [const(ACC, 0)] * len(x)) for _ in panels]
    for j in range(start, start + f.grain // 4):
        codes = [codes_of(j) for codes_of in panels]
        for t, xt in enumerate(x):
            xj = _broadcast(b, xt, j, vty(I8, 64))
            for of_panel, q in zip(sums, codes):
                of_panel[t] = dot_onto(b, of_panel[t], q, xj, f.signed)
    return sums


def unit_of_bytes(
    b: Builder, f: Format, codes_of: Codes, x: Sequence[Value], scales: Value | None = None
) -> list[Value]:
    """32 columns of 16 rows by each token -> <16 x i32>, integer scales included.

    On AVX2, signed codes have to be words instead (`unit_of_words`).
    """
    return (_unit_pairs if AVX2 else _unit_plain)(b, f, codes_of, x, scales)
