"""Sixteen rows of a quantised matrix, unpacked so that one row is one lane.

The matrix kernel unpacks a run of columns once into a buffer of its thread and uses it for all
tokens. It transposes codes and then decodes them, 16 rows at a time; it decodes integer scales row
by row and then transposes them. A block of the panel is contiguous:

    codes    per 32 columns 8 x [16 rows][4 columns] int8; in words 16 x [16 rows][2 columns] int16
    scales   (blocks of 256) per grain int32[16 rows]: the scale; for pair sums twice as int16; with
             AVX-512 float32[16 rows]: the scale times d
    minima   (blocks of 256) per two grains [16 rows][2] int16
    d, low   float32[16 rows] each; of blocks of 32 with a centre and of signed codes no low, and
             none of these nor minima where sums start at the centre (`sums_start`)

Signed codes are words on AVX2: there, exact products of signed bytes cost as much as of words
(vpmaddubsw needs |w| and sign(w) * x, and adds only two of their products in 16 bits).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ....jit.simd import F32, I16, I32, VARIANT, at, const, read, shuffle, vty, write
from ...types import ROWS_SIDE_BY_SIDE as ROWS
from ..dots import AVX2
from ..formats import Format, formatted
from ..formats.columns import Interleaved, Transposed, words_of_rows
from ..formats.pieces import SideBySide

FLOAT_SCALES = VARIANT == "avx512"
_ROW_MINIMA = ROWS * 32  # offset of minima in the buffer of rows: scales are int16[16 rows][16]


def sums_start(f: Format) -> bool:
    """Whether integer sums of a block of 256 start at minus the centre times the activations' sum.

    Scales that are floats are multiplied in afterwards. Then minima are not needed.
    """
    return FLOAT_SCALES and f.block == 256 and bool(f.centre)


@dataclass(frozen=True)
class PanelLayout:
    """Byte offsets inside one block of a panel, and inside the rows before they are transposed."""

    words: bool
    code_bytes: int  # per 32 columns
    scales: int
    minima: int
    d: int
    has_low: bool
    low: int
    n_bytes: int
    rows_bytes: int


def panel_layout(f: Format) -> PanelLayout:
    """The layout of a panel of this format."""
    words = f.signed and AVX2
    code_bytes = 1024 if words else 512
    scales = f.block // 32 * code_bytes
    minima = scales + (f.block // f.grain * 64 if f.scales else 0)
    d = minima + (f.block // 32 * 64 if f.scales else 0)
    has_low = not f.signed and not sums_start(f) and (f.block == 256 or not f.centre)
    return PanelLayout(
        words=words,
        code_bytes=code_bytes,
        scales=scales,
        minima=minima,
        d=d,
        has_low=has_low,
        low=d + 64,
        n_bytes=d + (128 if has_low else 64),
        # Blocks of 32 need no memory there: it is only a distance from the panels to the sums.
        rows_bytes=ROWS * (64 if f.block == 256 else 96),
    )


def _widened(b, w):
    """[16 rows][4] int8 -> twice [16 rows][2] int16: columns 0 and 1, columns 2 and 3."""
    pairs, ty = b.bitcast(w, vty(I16, 32)), vty(I16, 32)
    left = ir.Constant(ty, [8, 0] * 16)
    for column in (0, 1):
        twice = shuffle(b, pairs, [2 * (i // 2) + column for i in range(32)])
        yield b.ashr(b.shl(twice, left), const(ty, 8))


def _write_codes(b, layout, j, w, panel):
    """Codes of columns 4 j .. 4 j + 3 of 16 rows to the panel."""
    for k, codes in enumerate(_widened(b, w) if layout.words else [w]):
        write(b, codes, panel, layout.code_bytes // 8 * j + 64 * k)


def _write_32(b, f, columns, blocks, panel):
    """A block of 32 of 16 rows to the panel: columns(j) for the codes, `blocks` for the floats."""
    layout = panel_layout(f)
    for j in range(8):
        [w] = f.codes(b, columns(j))
        _write_codes(b, layout, j, w, panel)
    d, low = f.floats(b, blocks)
    write(b, d, panel, layout.d)
    if layout.has_low:
        write(b, low, panel, layout.low)


def _spread_scales(b, f, layout, rows, panel):
    """Word j of a row holds the int16 scales of its grains 2 j and 2 j + 1."""
    sixteen, floats = const(vty(I32, 16), 16), vty(F32, 16)
    d = read(b, panel, floats, layout.d)
    for j, w in enumerate(words_of_rows(b, rows, 32)):
        both = [b.ashr(b.shl(w, sixteen), sixteen), b.ashr(w, sixteen)]
        grains = both[: 32 // f.grain]
        if AVX2 and not layout.words:  # vpmaddwd takes the scale twice
            low = const(w.type, 0xFFFF)
            grains = [b.or_(b.and_(scale, low), b.shl(scale, sixteen)) for scale in grains]
        if FLOAT_SCALES:
            grains = [b.fmul(b.sitofp(scale, floats), d) for scale in grains]
        for k, scale in enumerate(grains):
            write(b, scale, panel, layout.scales + 64 * (j * len(grains) + k))


def _rows_at(b, w, stride, n):
    """Pointers to 16 rows, `stride` bytes apart, the first at w: beyond n rows, the last again."""
    pointers, last = [], b.sub(n, ir.Constant(n.type, 1))
    for r in range(ROWS):
        number = ir.Constant(n.type, r)
        number = b.select(b.icmp_signed("<", number, n), number, last)
        pointers.append(at(b, b.add(w, b.mul(stride, number))))
    return pointers


@formatted()
def unpack_32(b, f, w, stride, n, panel):
    """The same block of 32 of up to 16 rows, `stride` bytes apart, the first at w -> panel."""
    pointers = _rows_at(b, w, stride, n)
    words: dict[int, list[ir.Value]] = {}
    _write_32(b, f, lambda j: Transposed(j, pointers, words), pointers, at(b, panel))


@formatted()
def unpack_256(b, f, w, stride, n, panel):
    """Codes, d and low of the same block of 256 of up to 16 rows (as `unpack_32`) -> panel."""
    layout, panel, pointers = panel_layout(f), at(b, panel), _rows_at(b, w, stride, n)
    words: dict[int, list[ir.Value]] = {}
    columns = [f.codes(b, Transposed(j, pointers, words)) for j in range(8)]
    for s, codes in enumerate(zip(*columns)):  # emitted 32 columns by 32
        for j, q in enumerate(codes):
            _write_codes(b, layout, j, q, at(b, panel, s * layout.code_bytes))
    d, low = f.d_and_low(b, pointers)
    write(b, d, panel, layout.d)
    if layout.has_low:
        write(b, low, panel, layout.low)


@formatted()
def unpack_interleaved(b, f, w, panel):
    """A block of 32 of 16 interleaved rows, at w -> panel."""
    w, panel = at(b, w), at(b, panel)
    _write_32(b, f, lambda j: Interleaved(j, w), SideBySide(w, ROWS), panel)


@formatted()
def decode_scales(b, f, w, row, rows):
    """Scales and minima of a block of 256 at address w -> row `row` of the buffer `rows`."""
    rows = b.gep(at(b, rows), [b.mul(row, ir.Constant(row.type, 32))])
    scales, minima = f.scales(b, at(b, w))
    write(b, scales, rows)
    if minima is not None and panel_layout(f).has_low:
        write(b, minima, rows, _ROW_MINIMA)


@formatted()
def spread_scales(b, f, rows, panel):
    """The buffered scales and minima of 16 rows -> the panel, which has d already."""
    layout, rows, panel = panel_layout(f), at(b, rows), at(b, panel)
    _spread_scales(b, f, layout, rows, panel)
    if not layout.has_low:
        return
    minima = words_of_rows(b, at(b, rows, _ROW_MINIMA), 32)
    if f.grain == 32:  # each minimum is repeated
        low, high = (const(minima[0].type, mask) for mask in (0xFFFF, -0x10000))
        pairs = zip(minima[::2], minima[1::2])
        minima = [b.or_(b.and_(x, low), b.and_(y, high)) for x, y in pairs]
    for j, pair in enumerate(minima):
        write(b, pair, panel, layout.minima + 64 * j)
