"""The Hadamard rotation that q4_0 rows are stored under: it spreads an outlier over its block."""

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import at, read, write
from .shape import VEC


@intrinsic
def _rotate16(typingctx, address, factor):
    """16 floats times `factor` times the Hadamard matrix of 16, in place: strides 1, 2, 4, 8."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[0])
        x = b.fmul(read(b, place, VEC), v.splat(b, vals[1], 16))
        for d in (1, 2, 4, 8):
            sign = ir.Constant(VEC, [-1.0 if lane & d else 1.0 for lane in range(16)])
            x = v.fmuladd(b, x, sign, v.shuffle(b, x, [lane ^ d for lane in range(16)]))
        write(b, x, place)
        return ctx.get_dummy_value()

    return types.void(types.intp, types.float32), codegen


@intrinsic
def _butterfly(typingctx, low, high):
    """(a, b) = (a + b, a - b) for 16 floats at each address."""

    def codegen(ctx, b, sig, vals):
        low, high = (at(b, x) for x in vals)
        x, y = read(b, low, VEC), read(b, high, VEC)
        write(b, b.fadd(x, y), low)
        write(b, b.fsub(x, y), high)
        return ctx.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@jit
def rotate_row(address, n, block):
    """Rotate n floats in place, in orthonormal blocks of `block`, a power of two >= 32."""
    factor = 1.0 / math.sqrt(block)
    for i in range(0, n, 16):
        _rotate16(address + 4 * i, factor)
    d = 16
    while d < block:
        for i in range(0, n, 2 * d):
            for k in range(i, i + d, 16):
                _butterfly(address + 4 * k, address + 4 * (k + d))
        d *= 2
