"""Codes to the formats' bits: the inverse of `ops.reference.quants`, which reads them.

Blocks of 256, byte by byte (codes c; fields of k bits are the next run of 32 weights each):

    Q2_K  16 scale | minimum nibbles · 64 fields of 2 bits · h d · h dmin
    Q3_K  32 third bits · 64 fields of 2 bits · 12 scales of 6 bits · h d
    Q4_K  h d · h dmin · 12 scales and minima of 6 bits · 128 nibbles
    Q5_K  h d · h dmin · 12 scales and minima of 6 bits · 32 fifth bits · 128 nibbles
    Q6_K  128 nibbles · 64 fields of 2 bits · 16 int8 scales · h d

All arguments are addresses but d and low (float32): codes uint8[256] or [32]; steps and minima, the
integers beside d, as float32[16].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ....jit.cached import jit
from ....jit.simd import load_i8x16, load_i8x32, load_one_f32, store, store_f16
from .vectors import bits_of


@jit
def _whole(numbers, i):
    return np.int64(load_one_f32(numbers, 4 * i))


@cache
def pack_32(top: int, has_low: bool) -> Callable[..., Any]:
    """The jitted writer of a block of 32, pack(codes, d, low, out), for codes up to `top`:

    h d · h low, where the format has one · 32 fifth bits, where top is 31 · 16 nibbles (weights
    0-15 low, 16-31 high)
    """
    fifths = 4 if has_low else 2
    nibbles = fifths + 4 if top > 15 else fifths

    @jit
    def _pack(codes, d, low, out):
        if has_low:
            store_f16(out, 2, low)
        store_f16(out, 0, d)
        if nibbles > fifths:
            store(out, fifths, bits_of(load_i8x32(codes, 0) & 16))
        first, second = load_i8x16(codes, 0), load_i8x16(codes, 16)
        store(out, nibbles, (first & 15) | ((second & 15) << 4))

    return _pack


@jit
def _pairs(codes, shift, out):
    """Fields of two bits, of the codes' bits from `shift` on: 64 bytes."""
    for half in range(2):
        fields = load_i8x32(codes, 128 * half) >> shift & 3
        for k in range(1, 4):
            fields |= (load_i8x32(codes, 128 * half + 32 * k) >> shift & 3) << (2 * k)
        store(out, 32 * half, fields)


@jit
def _bit(codes, shift, out):
    """One bit of every code: 32 bytes."""
    bits = load_i8x32(codes, 0) >> shift & 1
    for k in range(1, 8):
        bits |= (load_i8x32(codes, 32 * k) >> shift & 1) << k
    store(out, 0, bits)


@jit
def _nibbles_64(codes, out):
    """The nibbles of 256 codes: of each 64 the first 32 low, the others high; 128 bytes."""
    for k in range(4):
        low, high = load_i8x32(codes, 64 * k), load_i8x32(codes, 64 * k + 32)
        store(out, 32 * k, (low & 15) | ((high & 15) << 4))


@jit
def _sixes(steps, minima, out):
    """Eight scales and eight minima of 6 bits: 12 bytes."""
    for j in range(4):
        scale, low = _whole(steps, j), _whole(minima, j)
        scale4, low4 = _whole(steps, j + 4), _whole(minima, j + 4)
        store(out, j, np.uint8(scale | scale4 >> 4 << 6))
        store(out, j + 4, np.uint8(low | low4 >> 4 << 6))
        store(out, j + 8, np.uint8(scale4 & 15 | (low4 & 15) << 4))


@jit
def pack_q2_k(codes, steps, minima, d, low, out):
    for j in range(16):
        store(out, j, np.uint8(_whole(steps, j) | _whole(minima, j) << 4))
    _pairs(codes, 0, out + 16)
    store_f16(out, 80, d)
    store_f16(out, 82, low)


@jit
def pack_q3_k(codes, steps, d, out):
    _bit(codes, 2, out)
    _pairs(codes, 0, out + 32)
    for j in range(8):
        first, second = _whole(steps, j) + 32, _whole(steps, j + 8) + 32
        store(out, 96 + j, np.uint8(first & 15 | (second & 15) << 4))
    for j in range(4):
        high = 0
        for k in range(4):
            high |= (_whole(steps, 4 * k + j) + 32) >> 4 << (2 * k)
        store(out, 104 + j, np.uint8(high))
    store_f16(out, 108, d)


@jit
def pack_q4_k(codes, steps, minima, d, low, out):
    store_f16(out, 0, d)
    store_f16(out, 2, low)
    _sixes(steps, minima, out + 4)
    _nibbles_64(codes, out + 16)


@jit
def pack_q5_k(codes, steps, minima, d, low, out):
    store_f16(out, 0, d)
    store_f16(out, 2, low)
    _sixes(steps, minima, out + 4)
    _bit(codes, 4, out + 16)
    _nibbles_64(codes, out + 48)


@jit
def pack_q6_k(codes, steps, d, out):
    for half in range(2):
        for k in range(2):
            low = load_i8x32(codes, 128 * half + 32 * k)
            high = load_i8x32(codes, 128 * half + 32 * k + 64)
            store(out, 64 * half + 32 * k, (low & 15) | ((high & 15) << 4))
    _pairs(codes, 4, out + 128)
    for j in range(16):
        store(out, 192 + j, np.uint8(_whole(steps, j) & 255))
    store_f16(out, 208, d)
