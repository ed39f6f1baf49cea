"""Query heads times q8_0 keys, as sums of products of bytes, with AVX-512 VNNI.

    q_i   = unit (65536 a_i + 256 b_i + c_i)                      a, b, c int8, unit = max |q| / M
    q . k = unit * sum over blocks of d (65536 sum a k + 256 sum b k + sum c k)

for the codes k and the scale d of each block of 32. Queries keep 24 bits and sums of bytes are
exact, so that products are as exact as those of floats. Lanes are tokens: four bytes of each of 16
keys form one vector, so that no sum crosses lanes. `vpdpbusd` takes unsigned bytes: 128 is added to
codes, and sums begin at -128 sum a.

A split query, in the memory of its floats (`split_query`):

    int8 a, b, c [3][padded]    int32 -128 sums of a, b, c [block][3]    float32 unit
"""

from llvmlite import ir

from ....jit import simd as v
from ....jit.simd import at_item, emit_join, read, write
from ..layout import BLOCK, TILE
from ..shape import VEC, shaped

_MOST = 127 << 16 | 127 << 8  # M; rounding may exceed it by 1, which still fits
_PARTS = 3
_LEAST = 1e-20  # queries whose elements are all smaller count as 0
_WORDS = v.vty(v.I32, 16)


def _sums_at(shape, block, part):
    return _PARTS * shape.padded + 4 * (_PARTS * block + part)


@shaped()
def split_query(b, shape, row):
    """Replace a query, float32[padded] at an address; one with NaN or infinity gets a NaN unit."""
    x = [read(b, row, VEC, 64 * i) for i in range(shape.vectors)]
    zero, zeros = ir.Constant(v.F32, 0.0), v.const(VEC, 0.0)
    most, nothing = zeros, zeros
    for y in x:
        most = v.call(b, "llvm.maxnum.v16f32", VEC, most, v.call(b, "llvm.fabs.v16f32", VEC, y))
        nothing = v.fmuladd(b, y, zeros, nothing)  # NaN where an element is not finite
    most = v.call(b, "llvm.vector.reduce.fmax.v16f32", v.F32, most)
    nothing = v.call(b, "llvm.vector.reduce.fadd.v16f32", v.F32, zero, nothing)
    none = b.fcmp_ordered("<", most, ir.Constant(v.F32, _LEAST))
    factor = b.select(none, zero, b.fdiv(ir.Constant(v.F32, _MOST), most))
    unit = b.select(none, zero, b.fmul(most, ir.Constant(v.F32, 1 / _MOST)))
    unit = b.fadd(unit, nothing)
    sums = [[None] * _PARTS for _ in range(shape.vectors // 2)]
    for i, y in enumerate(x):
        whole = v.call(b, "llvm.rint.v16f32", VEC, b.fmul(y, v.splat(b, factor, 16)))
        left = v.call(b, "llvm.fptosi.sat.v16i32.v16f32", _WORDS, whole)
        for part in (2, 1, 0):
            byte = b.ashr(b.shl(left, v.const(_WORDS, 24)), v.const(_WORDS, 24))
            left = b.ashr(b.sub(left, byte), v.const(_WORDS, 8))
            write(b, b.trunc(byte, v.vty(v.I8, 16)), row, part * shape.padded + 16 * i)
            totals = sums[i // 2]
            totals[part] = byte if i % 2 == 0 else b.add(totals[part], byte)
    for block, parts in enumerate(sums):
        for part, y in enumerate(parts):
            total = v.call(b, "llvm.vector.reduce.add.v16i32", v.I32, y)
            write(b, b.mul(total, ir.Constant(v.I32, -128)), row, _sums_at(shape, block, part))
    write(b, unit, row, _sums_at(shape, len(sums), 0))


def _in_quarters(b, x, y, order):
    """Four elements of each quarter of x (numbers 0 to 3) and y (16 to 19)."""
    return v.shuffle(b, x, [4 * quarter + i for quarter in range(4) for i in order], y)


def _lanes_of_tokens(b, keys, line, first):
    """Bytes first .. first+15 of 16 rows -> 4 vectors: 4 bytes of each row. line: bytes a row."""
    x = []
    for r in range(4):
        rows = [read(b, keys, v.vty(v.I32, 4), line * (r + 4 * i) + first) for i in range(4)]
        x.append(emit_join(b, emit_join(b, *rows[:2]), emit_join(b, *rows[2:])))
    halves = []
    for order in ((0, 16, 1, 17), (2, 18, 3, 19)):
        halves.append([_in_quarters(b, y, z, order) for y, z in ((x[0], x[1]), (x[2], x[3]))])
    return [
        _in_quarters(b, y, z, order)
        for y, z in halves
        for order in ((0, 1, 16, 17), (2, 3, 18, 19))
    ]


@shaped()
def add_products(b, shape, q, block, keys, scales, s, line):
    """s[h][0..15] += q[h] . key of one block of 32 elements, of 16 keys and each head.

    q: split queries; keys: of the tile; scales: float32 [block][token]; line: bytes from s[h] to
    s[h + 1]. All others are addresses.
    """
    row_bytes = 4 * shape.padded
    place = at_item(b, q, block, BLOCK)
    begin = at_item(b, q, block, 4 * _PARTS)
    keys, flip = at_item(b, keys, block, BLOCK), v.const(v.BYTES, -128)
    sums = [
        [
            v.splat(b, read(b, begin, v.I32, h * row_bytes + _sums_at(shape, 0, part)), 16)
            for part in range(_PARTS)
        ]
        for h in range(shape.heads)
    ]
    for column in (0, 16):
        for i, words in enumerate(_lanes_of_tokens(b, keys, shape.layout.k_row_bytes, column)):
            x = b.xor(b.bitcast(words, v.BYTES), flip)
            for h in range(shape.heads):
                for part in range(_PARTS):
                    to = h * row_bytes + part * shape.padded + column + 4 * i
                    y = b.bitcast(v.splat(b, read(b, place, v.I32, to), 16), v.BYTES)
                    sums[h][part] = v.emit_dot_us(b, sums[h][part], x, y)
    scale = read(b, at_item(b, scales, block, 4 * TILE), VEC)
    for h, (high, middle, low) in enumerate(sums):
        lower = b.add(b.shl(middle, v.const(_WORDS, 8)), low)
        x = v.fmuladd(b, b.sitofp(high, VEC), v.const(VEC, 65536.0), b.sitofp(lower, VEC))
        unit = read(b, q, v.F32, h * row_bytes + _sums_at(shape, shape.vectors // 2, 0))
        scores, d = at_item(b, s, line, h), b.fmul(scale, v.splat(b, unit, 16))
        write(b, v.fmuladd(b, x, d, read(b, scores, VEC)), scores)
