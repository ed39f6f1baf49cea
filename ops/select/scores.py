"""Scores as costs: the larger a float32, the smaller an unsigned integer of 32 bits."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import at, read
from ..attention.shape import VEC

_LOW = np.uint64(0xFFFFFFFF)
_SIGN = np.uint64(0x80000000)


@intrinsic
def at_least(typingctx, scores, limit):
    """Bit i = float32 i of the 16 at an address is at least the limit; NaN never is."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), VEC)
        hits = b.fcmp_ordered(">=", x, v.splat(b, vals[1], 16))
        return b.zext(b.bitcast(hits, ir.IntType(16)), v.I64)

    return types.uint64(types.intp, types.float32), codegen


@jit
def cost_of(bits):
    """The cost of the float32 with these bits (uint64): a larger number costs less."""
    return (bits ^ (_LOW if bits & _SIGN else _SIGN)) ^ _LOW


@intrinsic
def float_bits(typingctx, x):
    """The bits of a float32."""

    def codegen(ctx, b, sig, vals):
        return b.bitcast(vals[0], v.I32)

    return types.uint32(types.float32), codegen


@intrinsic
def _as_float(typingctx, bits):
    def codegen(ctx, b, sig, vals):
        return b.bitcast(b.trunc(vals[0], v.I32), v.F32)

    return types.float32(types.uint64), codegen


@jit
def score_of(cost):
    """The float32 of this cost."""
    bits = cost ^ _LOW
    return _as_float(bits ^ (_SIGN if bits & _SIGN else _LOW))
