"""Blocks of 32 on a grid that their largest weights fix, and plain floats: no search.

    Q4_0, Q5_0   d = x_top / -n, q = ⌊x / d + n + ½⌋      x_top: largest magnitude, with its sign
    Q4_1, Q5_1   d = (max - min) / (2n - 1), q = ⌊(x - min) / d + ½⌋
    Q8_0         d = max |x| / 127, q = x / d, halves away from zero

Byte for byte what gguf-py and ggml compute: products and sums are rounded one by one, never fused.
"""

from __future__ import annotations

import numpy as np

from ....jit.cached import jit
from ....jit.simd import (
    bits_i32,
    hmax,
    imax,
    imin,
    load_f32,
    load_one_f32,
    load_u32,
    narrow_i8,
    narrow_i16,
    set_f32,
    set_i32,
    store,
    store_f16,
    to_f32,
    vabs,
    vmax,
)
from .packing import pack_fives, pack_fives_low, pack_nibbles, pack_nibbles_low
from .vectors import ends, trunc_i32

UNFUSED = {"fastmath": {"nsz"}}


@jit(**UNFUSED)
def _top(x):
    """The first of the 32 numbers with the largest magnitude."""
    low, high = ends(x, 32)
    if high == -low:
        for at in range(0, 128, 4):
            if abs(load_one_f32(x, at)) == high:
                return load_one_f32(x, at)
    return high if high > -low else low


@jit(**UNFUSED)
def _floor_codes(x, low, inverse, half, last, codes):
    """⌊(x - low) inverse + half⌋, at most `last`."""
    for at in (0, 64):
        y = (load_f32(x, at) - set_f32(low)) * set_f32(inverse) + set_f32(half)
        q = imin(imax(trunc_i32(y), set_i32(0)), set_i32(last))
        store(codes, at // 4, narrow_i8(q))


@jit(**UNFUSED)
def _inverse(d):
    return np.float32(1) / d if d != 0 else np.float32(0)


@jit(**UNFUSED)
def round_q4_0(x, work, out):
    d = _top(x) / np.float32(-8)
    _floor_codes(x, np.float32(0), _inverse(d), np.float32(8.5), 15, work)
    pack_nibbles(work, d, out)


@jit(**UNFUSED)
def round_q5_0(x, work, out):
    d = _top(x) / np.float32(-16)
    _floor_codes(x, np.float32(0), _inverse(d), np.float32(16.5), 31, work)
    pack_fives(work, d, out)


@jit(**UNFUSED)
def round_q4_1(x, work, out):
    low, high = ends(x, 32)
    d = (high - low) / np.float32(15)
    _floor_codes(x, low, _inverse(d), np.float32(0.5), 15, work)
    pack_nibbles_low(work, d, low, out)


@jit(**UNFUSED)
def round_q5_1(x, work, out):
    low, high = ends(x, 32)
    d = (high - low) / np.float32(31)
    _floor_codes(x, low, _inverse(d), np.float32(0.5), 31, work)
    pack_fives_low(work, d, low, out)


@jit(**UNFUSED)
def round_q8_0(x, work, out):
    top = hmax(vmax(vabs(load_f32(x, 0)), vabs(load_f32(x, 64))))
    d = top / np.float32(127)
    inverse = set_f32(_inverse(d))
    for at in (0, 64):
        y = load_f32(x, at) * inverse
        whole = trunc_i32(y)
        rest = y - to_f32(whole)
        store(out, 2 + at // 4, narrow_i8(whole + trunc_i32(rest + rest)))
    store_f16(out, 0, d)


@jit(**UNFUSED)
def round_f16(x, n, out):
    """n floats to f16."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        store_f16(out, 2 * i, load_f32(x, 4 * i))
    for i in range(whole, n):
        store_f16(out, 2 * i, load_one_f32(x, 4 * i))


@jit(**UNFUSED)
def _bf16(word):
    """Bits of floats to those of bf16, ties to even."""
    return (word + ((word >> 16) & 1) + 0x7FFF) >> 16


@jit(**UNFUSED)
def round_bf16(x, n, out):
    """n floats to bf16."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        store(out, 2 * i, narrow_i16(_bf16(bits_i32(load_f32(x, 4 * i)))))
    for i in range(whole, n):
        store(out, 2 * i, np.uint16(_bf16(np.int64(load_u32(x, 4 * i)))))
