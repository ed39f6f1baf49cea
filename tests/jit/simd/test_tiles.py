"""Tiles, several vectors in one value, pass between the functions of a kernel."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvarn.jit import simd as v
from kvarn.jit.cached import jit


@intrinsic
def _swap_tile(typingctx, src, dst):
    """Through a Tile value: both of its vectors, the second first."""
    tile = v.Tile("f32", 2, panels=1, lanes=8)

    def codegen(ctx, b, sig, vals):
        value = ir.Constant(ctx.get_value_type(tile), ir.Undefined)
        for i in (0, 1):
            off = ctx.get_constant(types.intp, 32 * (1 - i))
            x = b.load(v.pointer(ctx, b, sig.args[0], vals[0], off, v.f32x8.ir))
            x.align = 1
            value = b.insert_value(value, x, i)
        return value

    return tile(src, dst), codegen


@intrinsic
def _store_tile(typingctx, tile, dst):
    def codegen(ctx, b, sig, vals):
        for i in range(sig.args[0].n):
            off = ctx.get_constant(types.intp, 32 * i)
            at = v.pointer(ctx, b, sig.args[1], vals[1], off, v.f32x8.ir)
            b.store(b.extract_value(vals[0], i), at).align = 1
        return ctx.get_dummy_value()

    return types.void(tile, dst), codegen


@jit
def _through_tile(a, out):
    _store_tile(_swap_tile(a, out), out)


def test_tiles_pass_between_functions():
    a, out = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
    _through_tile(a, out)
    np.testing.assert_array_equal(out, np.r_[a[8:], a[:8]])
