"""The Hadamard rotation of stored q4_0 rows: it spreads an outlier over its block."""

import math

from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import read, write
from .shape import VEC


@v.emits(types.void, v.INTP, types.float32)
def _rotate16(b, address, factor):
    """16 floats times `factor` times the Hadamard matrix of 16, in place: strides 1, 2, 4, 8."""
    x = b.fmul(read(b, address, VEC), v.splat(b, factor, 16))
    for d in (1, 2, 4, 8):
        sign = ir.Constant(VEC, [-1.0 if lane & d else 1.0 for lane in range(16)])
        x = v.fmuladd(b, x, sign, v.shuffle(b, x, [lane ^ d for lane in range(16)]))
    write(b, x, address)


@v.emits(types.void, v.INTP, v.INTP)
def _butterfly(b, low, high):
    """(a, b) = (a + b, a - b) for 16 floats at each address."""
    x, y = read(b, low, VEC), read(b, high, VEC)
    write(b, b.fadd(x, y), low)
    write(b, b.fsub(x, y), high)


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
