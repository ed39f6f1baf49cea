"""Inner operations of the search in blocks: q . mean of 16 blocks, and the sums of one block."""

from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.simd import at, read, write
from ...attention.shape import VEC
from ..lookup import BYTES, add_saturated, look_up
from .layout import BLOCK, BLOCKS

DIMENSIONS = 16  # whose products with 16 means are summed in registers


@intrinsic
def add_means(typingctx, kind, means, queries, sums):
    """sums[query][16 blocks] += products of 16 dimensions; addresses all.

    means i8 [16][32], queries f32 [query][bits], sums f32 [query][32].
    """

    def codegen(ctx, b, sig, vals):
        means, queries, sums = (at(b, x) for x in vals[1:])
        total = [read(b, sums, VEC, 4 * BLOCKS * h) for h in range(kind.queries)]
        for d in range(DIMENSIONS):
            x = b.sitofp(read(b, means, v.vty(v.I8, 16), BLOCKS * d), VEC)
            for h in range(kind.queries):
                q = v.splat(b, read(b, queries, v.F32, 4 * (h * kind.bits + d)), 16)
                total[h] = v.fmuladd(b, x, q, total[h])
        for h, x in enumerate(total):
            write(b, x, sums, 4 * BLOCKS * h)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen


@intrinsic
def signed_sums(typingctx, kind, bits, table, sums):
    """sums i8 [32 tokens] = sums over half bytes of the query's table, each addition
    saturated; addresses all."""

    def codegen(ctx, b, sig, vals):
        bits, table, sums = (at(b, x) for x in vals[1:])
        total = v.const(BYTES, 0)
        for i in range(kind.bits // 8):
            plane = read(b, bits, BYTES, BLOCK * i)
            halves = b.and_(plane, v.const(BYTES, 15)), b.lshr(plane, v.const(BYTES, 4))
            for half, x in enumerate(halves):
                entries = read(b, table, v.vty(v.I8, 16), 16 * (2 * i + half))
                total = add_saturated(b, total, look_up(b, entries, x))
        write(b, total, sums)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen
