"""Loads and stores of the last 1 to 15 floats of a row."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import simd as v


def _lanes(b, count):
    """A mask of the first `count` lanes."""
    lane = ir.Constant(v.vty(v.I32, 16), list(range(16)))
    return b.icmp_signed("<", lane, v.splat(b, b.trunc(count, v.I32), 16))


@intrinsic
def load_tail(typingctx, src, off, count):
    """`count` floats at byte `off` in the first lanes, zeros in the others."""

    def codegen(ctx, b, sig, vals):
        ty = v.f32x16.ir
        align, mask = ir.Constant(v.I32, 4), _lanes(b, vals[2])
        place, zeros = v.pointer(ctx, b, src, vals[0], vals[1], ty), ir.Constant(ty, None)
        return v.call(b, "llvm.masked.load.v16f32.p0", ty, place, align, mask, zeros)

    return v.f32x16(src, types.intp, types.intp), codegen


@intrinsic
def store_tail(typingctx, dst, off, count, vec):
    """Store the first `count` lanes at byte `off`."""

    def codegen(ctx, b, sig, vals):
        align, mask = ir.Constant(v.I32, 4), _lanes(b, vals[2])
        place = v.pointer(ctx, b, dst, vals[0], vals[1], v.f32x16.ir)
        void = ir.VoidType()
        v.call(b, "llvm.masked.store.v16f32.p0", void, vals[3], place, align, mask)
        return ctx.get_dummy_value()

    return types.void(dst, types.intp, types.intp, vec), codegen


@intrinsic
def first_lanes(typingctx, x, count):
    """x in the first `count` lanes of a vector, zeros in the others."""

    def codegen(ctx, b, sig, vals):
        ty = v.f32x16.ir
        return b.select(_lanes(b, vals[1]), v.splat(b, vals[0], 16), ir.Constant(ty, None))

    return v.f32x16(types.float32, types.intp), codegen
