"""The inner loops of attention in texts: register tiles of rows x columns, and transposed keys.

A strip is float32[lines][32]: of keys, a line for each element, 32 keys in it; of values, a line
for each key, 32 elements in it. Both products are rows of numbers by a strip:

    scores[row][key]    += q[row][element] * strip[element][key]
    sums[row][element]  += p[row][key] * strip[key][element]
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit.simd import (
    F32,
    INTP,
    Tile,
    at,
    emit_join,
    emit_transpose_8,
    fmuladd,
    read,
    splat,
    vty,
    write,
)
from ..shape import VEC, WIDE
from .work import STRIP

HEIGHT = 4 if WIDE else 6
"""Rows of a tile: with two vectors of columns 8 sums, which hide the latency of 8 products on a
wide machine; with one, 12 of a narrow machine's 16 registers."""
VECTORS = 2 if WIDE else 1
"""Vectors of 16 columns of a tile, at most."""


def _tile(vectors):
    return Tile("f32", HEIGHT * vectors.literal_value, vectors.literal_value)


def _places(b, ty, place, row_bytes):
    """i8* of each vector of a tile whose rows are row_bytes apart."""
    for i in range(ty.n):
        row = b.mul(row_bytes, ir.Constant(row_bytes.type, i // ty.panels))
        yield at(b, b.add(place, row), 64 * (i % ty.panels))


@intrinsic(prefer_literal=True)
def no_tile(typingctx, vectors):
    """Zeros for HEIGHT rows of so many vectors."""
    ty = _tile(vectors)
    return ty(vectors), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(ty), None)


@intrinsic(prefer_literal=True)
def get_tile(typingctx, vectors, place, row_bytes):
    """Load a tile whose rows are row_bytes apart."""
    ty = _tile(vectors)

    def codegen(ctx, b, sig, vals):
        tile = ir.Constant(ctx.get_value_type(ty), ir.Undefined)
        for i, pointer in enumerate(_places(b, ty, *vals[1:])):
            tile = b.insert_value(tile, read(b, pointer, VEC), i)
        return tile

    return ty(vectors, INTP, INTP), codegen


@intrinsic
def put_tile(typingctx, tile, place, row_bytes):
    """Store a tile whose rows are row_bytes apart."""

    def codegen(ctx, b, sig, vals):
        for i, pointer in enumerate(_places(b, tile, *vals[1:])):
            write(b, b.extract_value(vals[0], i), pointer)
        return ctx.get_dummy_value()

    return types.void(tile, INTP, INTP), codegen


@intrinsic
def add_line(typingctx, tile, factors, row_bytes, line):
    """tile[row] += the number of each row at `factors`, row_bytes apart, * a line of a strip."""

    def codegen(ctx, b, sig, vals):
        sums, factors, row_bytes, line = vals
        columns = [read(b, at(b, line), VEC, 64 * c) for c in range(tile.panels)]
        for r in range(HEIGHT):
            row = b.add(factors, b.mul(row_bytes, ir.Constant(row_bytes.type, r)))
            factor = splat(b, read(b, at(b, row), F32), 16)
            for c, x in enumerate(columns):
                i = r * tile.panels + c
                new = fmuladd(b, x, factor, b.extract_value(sums, i))
                sums = b.insert_value(sums, new, i)
        return sums

    return tile(tile, INTP, INTP, INTP), codegen


@intrinsic
def transpose(typingctx, rows, row_bytes, n, strip):
    """8 elements of 16 rows into 8 lines of a strip, one row per lane; beyond n rows, the last."""

    def codegen(ctx, b, sig, vals):
        rows, row_bytes, n, strip = vals
        last, x = b.sub(n, ir.Constant(n.type, 1)), []
        for r in range(16):
            number = ir.Constant(n.type, r)
            number = b.select(b.icmp_signed("<", number, n), number, last)
            x.append(read(b, at(b, b.add(rows, b.mul(row_bytes, number))), vty(F32, 8)))
        for i, both in enumerate(zip(emit_transpose_8(b, x[:8]), emit_transpose_8(b, x[8:]))):
            write(b, emit_join(b, *both), strip, 4 * STRIP * i)
        return ctx.get_dummy_value()

    return types.void(INTP, INTP, INTP, INTP), codegen
