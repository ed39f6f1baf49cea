"""Sixteen rows of a quantised matrix, unpacked so that one row is one lane.

The matrix kernel unpacks a run of columns once into a buffer of its thread and uses it for all
tokens. Blocks of 32 are transposed as they are packed, and decoded 16 rows at a time; blocks of 256
are decoded row by row. A block of the panel is contiguous:

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

from ..simd import BYTES, I8, I16, I32, INTP, const, emit_join, shuffle, vty
from .dots import AVX2
from .formats import Columns, Format, at, field, gather, read
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


def _transposed_4(b, rows):
    """8 vectors of 4 words, one per row -> 4 vectors of 8 words; inside 128-bit halves."""
    pairs = [emit_join(b, rows[i], rows[i + 4]) for i in range(4)]
    words = []
    for low in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]):
        left, right = (shuffle(b, pairs[i], low, pairs[i + 1]) for i in (0, 2))
        for lanes in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]):
            words.append(shuffle(b, left, lanes, right))
    return words


class _Columns(Columns):
    """Columns 4 j .. 4 j + 3 of each 32, one row per word; transposed once for all j."""

    def __init__(self, rows, j, done):
        self.rows, self.j, self.done = rows, j, done

    def _words(self, b, offset):
        """16 bytes of 16 rows -> 4 vectors of 16 words."""
        if offset not in self.done:
            rows = [read(b, row, vty(I32, 4), offset) for row in self.rows]
            halves = _transposed_4(b, rows[:8]), _transposed_4(b, rows[8:])
            self.done[offset] = [emit_join(b, *both) for both in zip(*halves)]
        return self.done[offset]

    def read_bytes(self, b, offset):
        return b.bitcast(self._words(b, offset + 16 * (self.j // 4))[self.j % 4], BYTES)

    def read_nibbles(self, b, offset):
        words = b.bitcast(self._words(b, offset)[self.j % 4], BYTES)
        return field(b, words, 4 * (self.j // 4), 15)

    def read_bits(self, b, offset, value):
        if offset not in self.done:
            self.done[offset] = gather(b, self.rows, I32, offset)
        four = b.lshr(self.done[offset], const(vty(I32, ROWS), 4 * self.j))
        four = b.and_(four, const(four.type, 15))
        # Bit k to byte k: four copies, each 7 bits further than the last.
        spread = b.mul(four, const(four.type, 1 + (1 << 7) + (1 << 14) + (1 << 21)))
        ones = b.bitcast(b.and_(spread, const(four.type, 0x01010101)), BYTES)
        return b.mul(ones, const(BYTES, value))


def _write_codes(b, f, where, rows, panel):
    done: dict = {}
    for j in range(8):
        [w] = f.codes(b, _Columns(rows, j, done))
        for k, codes in enumerate(_widened(b, w) if where.words else [w]):
            _write(b, codes, panel, where.code_bytes // 8 * j + 64 * k)


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
def unpack_32(typingctx, kind, w, stride, rows, panel):
    """The same block of 32 of up to 16 rows, `stride` bytes apart, the first at w -> panel."""
    f = FORMATS[kind.literal_value]
    where = panel_layout(f)

    def codegen(ctx, b, sig, vals):
        _, w, stride, n, panel = vals
        panel, pointers, last = _pointer(b, panel), [], b.sub(n, ir.Constant(n.type, 1))
        for r in range(ROWS):  # beyond the last row, the last once more
            number = ir.Constant(n.type, r)
            number = b.select(b.icmp_signed("<", number, n), number, last)
            pointers.append(_pointer(b, b.add(w, b.mul(stride, number))))
        _write_codes(b, f, where, pointers, panel)
        d, low = f.floats(b, pointers)
        _write(b, d, panel, where.d)
        if low is not None:
            _write(b, low, panel, where.low)
        return ctx.get_dummy_value()

    return types.void(kind, *[INTP] * 4), codegen


@intrinsic(prefer_literal=True)
def decode_row(typingctx, kind, w, row, rows, panel):
    """A block of 256 at address w -> row `row` of the buffer `rows`; d, low to `panel`."""
    f = FORMATS[kind.literal_value]
    where = panel_layout(f)

    def codegen(ctx, b, sig, vals):
        _, w, row, rows, panel = vals
        w, rows, panel = (_pointer(b, v) for v in (w, rows, panel))

        def step(size):
            return b.mul(row, ir.Constant(row.type, size))

        for s, codes in enumerate(f.codes(b, w)):
            _write(b, codes, b.gep(rows, [step(f.block)]), 32 * s)
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


@intrinsic(prefer_literal=True)
def spread(typingctx, kind, rows, panel):
    """The buffered block of 256 of 16 rows -> codes, scales and minima of the panel."""
    f = FORMATS[kind.literal_value]
    where = panel_layout(f)

    def codegen(ctx, b, sig, vals):
        rows, panel = (_pointer(b, v) for v in vals[1:])
        with cgutils.for_range(b, ir.Constant(ir.IntType(64), f.block // 32)) as loop:
            from_rows = b.gep(rows, [b.mul(loop.index, ir.Constant(loop.index.type, 32))])
            step = b.mul(loop.index, ir.Constant(loop.index.type, where.code_bytes))
            _spread_codes(b, f, where, from_rows, b.gep(panel, [step]))
        _spread_scales(b, f, where, rows, panel)
        for j, minima in enumerate(_words(b, at(b, rows, where.row_minima), 32)):
            _write(b, minima, panel, where.minima + 64 * j)
        return ctx.get_dummy_value()

    return types.void(kind, INTP, INTP), codegen
