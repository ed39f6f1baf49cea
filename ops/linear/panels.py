"""Sixteen rows of a quantised matrix, unpacked so that one row is one lane.

The matrix kernel unpacks a panel once into a buffer of its thread and uses it for all tokens. A
block of the panel (32 or 256 columns) is contiguous:

    codes    per 32 columns 8 x [16 rows][4 columns] int8; in words 16 x [16 rows][2 columns] int16
    scales   (blocks of 256) per grain int32[16 rows]: the scale; for pair sums twice as int16
    minima   (blocks of 256) per 32 columns [16 rows][2] int16
    d, low   float32[16 rows] each

Signed codes are words on AVX2: there, exact products of signed bytes cost as much as of words
(vpmaddubsw needs |w| and sign(w) * x, and adds only two of their products in 16 bits).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..simd import I8, I16, I32, INTP, const, emit_join, shuffle, vty
from .dots import AVX2
from .formats import Format, at, read
from .kformats import FORMATS

ROWS = 16


@dataclass(frozen=True)
class PanelLayout:
    """Byte offsets inside one block of a panel, and inside the rows waiting for transposition."""

    words: bool
    code_bytes: int  # per 32 columns
    scales: int
    minima: int
    d: int
    low: int
    n_bytes: int
    row_scales: int
    row_minima: int
    rows_bytes: int


def panel_layout(f: Format) -> PanelLayout:
    """Where things are in a panel of this format."""
    words = f.signed and AVX2
    code_bytes = 1024 if words else 512
    scales = f.block // 32 * code_bytes
    minima = scales + (f.block // f.grain * 64 if f.scales else 0)
    d = minima + (f.block // 32 * 64 if f.scales else 0)
    codes_of_rows = ROWS * f.block
    return PanelLayout(
        words, code_bytes, scales, minima, d, d + 64, d + 128,
        codes_of_rows, codes_of_rows + ROWS * 32, codes_of_rows + ROWS * 64,
    )  # fmt: skip


def _write(b, value, place, offset=0):
    target = b.bitcast(at(b, place, offset), value.type.as_pointer())
    b.store(value, target).align = 1


def _pointer(b, address):
    return b.inttoptr(address, I8.as_pointer())


@intrinsic(prefer_literal=True)
def decode_row(typingctx, kind, w, row, rows, panel):
    """One block of a row, at address w -> row `row` of the buffer `rows`; d, low to `panel`."""
    f = FORMATS[kind.literal_value]
    where = panel_layout(f)

    def codegen(ctx, b, sig, vals):
        _, w, row, rows, panel = vals
        w, rows, panel = (_pointer(b, v) for v in (w, rows, panel))

        def step(size):
            return b.mul(row, ir.Constant(row.type, size))

        for s, codes in enumerate(f.codes(b, w)):
            _write(b, codes, b.gep(rows, [step(f.block)]), 32 * s)
        if f.scales:
            scales, minima = f.scales(b, w)
            _write(b, scales, b.gep(rows, [step(32)]), where.row_scales)
            if minima is not None:
                _write(b, minima, b.gep(rows, [step(32)]), where.row_minima)
        d, low = f.floats(b, [w])
        _write(b, d, b.gep(panel, [step(4)]), where.d)
        if low is not None:
            _write(b, low, b.gep(panel, [step(4)]), where.low)
        return ctx.get_dummy_value()

    return types.void(kind, INTP, INTP, INTP, INTP), codegen


def _transpose_8(b, rows):
    """8 vectors of 8 words -> 8 vectors; three rounds of shuffles of pairs of lanes' groups.

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


def _words(b, rows, stride):
    """32 bytes of 16 rows, `stride` bytes apart -> 8 vectors of 16 words."""
    return transposed(b, [read(b, rows, vty(I32, 8), r * stride) for r in range(ROWS)])


def _widened(b, w):
    """[16 rows][4] int8 -> twice [16 rows][2] int16: columns 0 and 1, columns 2 and 3."""
    pairs, ty = b.bitcast(w, vty(I16, 32)), vty(I16, 32)
    left = ir.Constant(ty, [8, 0] * 16)
    for column in (0, 1):
        twice = shuffle(b, pairs, [2 * (i // 2) + column for i in range(32)])
        yield b.ashr(b.shl(twice, left), const(ty, 8))


def _spread_codes(b, f, where, rows, panel):
    for j, w in enumerate(_words(b, rows, f.block)):
        for k, codes in enumerate(_widened(b, w) if where.words else [w]):
            _write(b, codes, panel, where.code_bytes // 8 * j + 64 * k)


def _spread_scales(b, f, where, rows, panel):
    """Word j of a row holds the int16 scales of its grains 2 j and 2 j + 1."""
    sixteen = const(vty(I32, 16), 16)
    for j, w in enumerate(_words(b, at(b, rows, where.row_scales), 32)):
        both = [b.ashr(b.shl(w, sixteen), sixteen), b.ashr(w, sixteen)]
        grains = both[: 32 // f.grain]
        if AVX2 and not where.words:  # vpmaddwd takes the scale twice
            low = const(w.type, 0xFFFF)
            grains = [b.or_(b.and_(scale, low), b.shl(scale, sixteen)) for scale in grains]
        for k, scale in enumerate(grains):
            _write(b, scale, panel, where.scales + 64 * (j * len(grains) + k))


@intrinsic(prefer_literal=True)
def spread(typingctx, kind, rows, panel):
    """The buffered block of 16 rows -> codes, scales and minima of the panel."""
    f = FORMATS[kind.literal_value]
    where = panel_layout(f)

    def codegen(ctx, b, sig, vals):
        rows, panel = (_pointer(b, v) for v in vals[1:])
        with cgutils.for_range(b, ir.Constant(ir.IntType(64), f.block // 32)) as loop:
            from_rows = b.gep(rows, [b.mul(loop.index, ir.Constant(loop.index.type, 32))])
            step = b.mul(loop.index, ir.Constant(loop.index.type, where.code_bytes))
            _spread_codes(b, f, where, from_rows, b.gep(panel, [step]))
        if f.scales:
            _spread_scales(b, f, where, rows, panel)
            for j, minima in enumerate(_words(b, at(b, rows, where.row_minima), 32)):
                _write(b, minima, panel, where.minima + 64 * j)
        return ctx.get_dummy_value()

    return types.void(kind, INTP, INTP), codegen
