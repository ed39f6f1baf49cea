"""Sums in registers: tiles of vectors, one row of the matrix per lane."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...jit.simd import F32, INTP, Tile, at, read, vty, write


def vectors_of(b, tile):
    """The vectors of a tile."""
    return [b.extract_value(tile, i) for i in range(tile.type.count)]


def tile_of(b, vectors):
    """The tile of some vectors of one type."""
    out = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        out = b.insert_value(out, vector, i)
    return out


@intrinsic(prefer_literal=True)
def no_sums(typingctx, n):
    """n vectors of zeros."""
    ty = Tile("f32", n.literal_value)
    return ty(n), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(ty), None)


@intrinsic(prefer_literal=True)
def load_sums(typingctx, n, address):
    """n vectors that `store_sums` has stored."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[1])
        return tile_of(b, [read(b, place, vty(F32, 16), 64 * i) for i in range(n.literal_value)])

    return Tile("f32", n.literal_value)(n, INTP), codegen


@intrinsic
def store_sums(typingctx, address, sums):
    """float32[vectors][16 rows]."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[0])
        for i, vector in enumerate(vectors_of(b, vals[1])):
            write(b, vector, place, 64 * i)
        return ctx.get_dummy_value()

    return types.void(INTP, sums), codegen


@intrinsic(prefer_literal=True)
def store_rows(typingctx, tokens, sums, out):
    """Store sums [panel][token] in the first columns of `out` (`Output`), for its tokens."""
    n_tokens = tokens.literal_value

    def codegen(ctx, b, sig, vals):
        vectors, (data, row, n) = vectors_of(b, vals[1]), cgutils.unpack_tuple(b, vals[2], 3)
        for t in range(n_tokens):
            number = ir.Constant(n.type, t)
            with b.if_then(b.icmp_signed("<", number, n)):
                place = at(b, b.add(data, b.mul(row, number)))
                for p, vector in enumerate(vectors[t::n_tokens]):
                    write(b, vector, place, 64 * p)
        return ctx.get_dummy_value()

    return types.void(tokens, sums, out), codegen
