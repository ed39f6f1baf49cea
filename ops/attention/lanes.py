"""Lanes of a vector of 16 scores."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import simd as v


@intrinsic
def any_above(typingctx, x, limit):
    """Whether a lane of x exceeds that of limit."""

    def codegen(ctx, b, sig, vals):
        above = b.bitcast(b.fcmp_ordered(">", *vals), ir.IntType(16))
        return b.icmp_unsigned("!=", above, ir.Constant(above.type, 0))

    return types.boolean(x, limit), codegen


@intrinsic
def mask(typingctx, x, lo, hi, fill):
    """x in lanes lo .. hi-1, `fill` in the others; lo may be negative and hi above 16."""

    def codegen(ctx, b, sig, vals):
        x, lo, hi, fill = vals
        lane = ir.Constant(v.vty(v.I32, 16), list(range(16)))
        lo, hi = (v.splat(b, b.trunc(n, v.I32), 16) for n in (lo, hi))
        inside = b.and_(b.icmp_signed(">=", lane, lo), b.icmp_signed("<", lane, hi))
        return b.select(inside, x, v.splat(b, fill, 16))

    return x(x, types.intp, types.intp, types.float32), codegen
