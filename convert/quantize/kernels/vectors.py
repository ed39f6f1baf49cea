"""Operations on vectors that only the encoders use."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from ....jit.cached import jit
from ....jit.simd import (
    I8,
    I32,
    Vec,
    call,
    emits,
    emits_by,
    hmax,
    i8x32,
    load_f32,
    load_half,
    load_one_f32,
    set_f32,
    store,
    store_f16,
    suffix,
    vmax,
    vty,
)


def _same_shape(a, c, x, y):
    fits = isinstance(a, Vec) and a == c and isinstance(x, Vec) and x == y and a.n == x.n
    return x if fits else None


# where_above(a, c, x, y): in each lane x where a > c, else y (also where a or c is no number).
where_above = emits_by(_same_shape)(lambda b, a, c, x, y: b.select(b.fcmp_ordered(">", a, c), x, y))

# Towards zero.
trunc_i32 = emits_by(lambda v: Vec("i32", v.n) if isinstance(v, Vec) and v.elem == "f32" else None)(
    lambda b, v: b.fptosi(v, vty(I32, v.type.count))
)

# Largest lane of an integer vector.
hmax_i32 = emits_by(lambda v: types.int32 if isinstance(v, Vec) and v.elem == "i32" else None)(
    lambda b, v: call(b, f"llvm.vector.reduce.smax.{suffix(v.type)}", I32, v)
)

# Bit i: byte i of 32 is not 0.
bits_of = emits(types.uint32, i8x32)(
    lambda b, v: b.bitcast(b.icmp_unsigned("!=", v, ir.Constant(vty(I8, 32), None)), I32)
)


@jit
def ends(x, n):
    """Smallest and largest of n floats (a multiple of 16) at an address."""
    zero = set_f32(0.0)
    high = load_f32(x, 0)
    low = zero - high
    for at in range(64, 4 * n, 64):
        high = vmax(high, load_f32(x, at))
        low = vmax(low, zero - load_f32(x, at))
    return -hmax(low), hmax(high)


@jit
def extreme(x, n):
    """The number of largest magnitude, with its sign."""
    low, high = ends(x, n)
    return high if high > -low else low


@jit
def best_lane(scores, work):
    """Number of the first lane with the largest score; `work`: address of 64 bytes."""
    store(work, 0, scores)
    best, lane = load_one_f32(work, 0), 0
    for i in range(1, 16):
        score = load_one_f32(work, 4 * i)
        if score > best:
            best, lane = score, i
    return lane


@jit
def lane_of(v, lane, work):
    """One lane of a vector."""
    store(work, 0, v)
    return load_one_f32(work, 4 * lane)


@jit
def half(x, work):
    """x rounded to f16; `work`: address of 2 bytes."""
    store_f16(work, 0, x)
    return load_half(work, 0)


@jit
def reciprocal(v):
    """1 / v, and 0 where v is 0."""
    zero = set_f32(0.0)
    return where_above(v * v, zero, set_f32(1.0) / v, zero)
