"""Lanes of a vector of 16 scores."""

from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.simd import emits, f32x16


@emits(types.boolean, f32x16, f32x16)
def any_above(b, x, limit):
    """Whether a lane of x exceeds that of limit."""
    above = b.bitcast(b.fcmp_ordered(">", x, limit), ir.IntType(16))
    return b.icmp_unsigned("!=", above, ir.Constant(above.type, 0))


@emits(f32x16, f32x16, v.INTP, v.INTP, types.float32)
def mask(b, x, lo, hi, fill):
    """x in lanes lo .. hi-1, `fill` in the others; lo may be negative and hi above 16."""
    lane = ir.Constant(v.vty(v.I32, 16), list(range(16)))
    lo, hi = (v.splat(b, b.trunc(n, v.I32), 16) for n in (lo, hi))
    inside = b.and_(b.icmp_signed(">=", lane, lo), b.icmp_signed("<", lane, hi))
    return b.select(inside, x, v.splat(b, fill, 16))
