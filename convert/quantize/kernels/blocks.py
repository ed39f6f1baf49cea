"""Blocks of 32 weights, and plain floats.

Where columns have no importance, the largest weights fix the grid, byte for byte as in gguf-py and
ggml: products and sums are rounded one by one, never fused.

    Q4_0, Q5_0   d = x_top / -n, q = ⌊x / d + n + ½⌋      x_top: largest magnitude, with its sign
    Q4_1, Q5_1   d = (max - min) / (2n - 1), q = ⌊(x - min) / d + ½⌋
    Q8_0         d = max |x| / 127, q = x / d, halves away from zero

Otherwise, and for IQ4_NL always, `searches` finds the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

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
from .packing import pack_32
from .searches import affine_search, scale_search, table, uniform
from .vectors import ends, half, reciprocal, trunc_i32

CODES = 64  # where codes stand in what a thread works in, after the lanes
F16_MAX = np.float32(65504)
UNFUSED = {"fastmath": {"nsz"}}


@dataclass(frozen=True)
class BlockFormat:
    """Codes up to `top`, with or without an offset, and how its search begins.

    search: arguments of `affine_search` (the cuts) with an offset, of `scale_search` without.
    """

    top: int
    has_low: bool
    search: tuple[Any, ...]


FORMATS = {
    "Q4_0": BlockFormat(15, False, (0.4, 0.3, 2, 2)),
    "Q4_1": BlockFormat(15, True, (-0.03, 0.0, 0.03, 0.06)),
    "Q5_0": BlockFormat(31, False, (0.3, 0.2, 2, 2)),
    "Q5_1": BlockFormat(31, True, (-0.015, 0.0, 0.015, 0.03)),
    "IQ4_NL": BlockFormat(15, False, (0.3, 0.2, 1, 1)),
}


@jit
def _half(x, work):
    """x rounded to f16, clamped: a candidate outside the weights' range may exceed f16."""
    return half(min(max(x, -F16_MAX), F16_MAX), work)


@cache
def searched_block(name: str) -> Callable[..., Any]:
    """The jitted encoder of one block: encode(x, w, work, out), all of them addresses."""
    f = FORMATS[name]
    pack = pack_32(f.top, f.has_low)
    if f.has_low:
        levels, search_pair = uniform(0, f.top), affine_search(f.top, 32, f.search, 2, False)

        @jit
        def _fit(x, w, work):
            d, low = search_pair(x, w, work)
            return _half(d, work), _half(low, work)

    else:
        levels = table() if name == "IQ4_NL" else uniform(-(f.top + 1) // 2, f.top // 2)
        search = scale_search(levels, 32, *f.search)

        @jit
        def _fit(x, w, work):
            return _half(search(x, w, work), work), np.float32(0)

    snap, code = levels.snap, levels.code

    @jit
    def _encode(x, w, work, out):
        d, low = _fit(x, w, work)
        inverse = reciprocal(set_f32(d))
        for at in (0, 64):
            q = snap((load_f32(x, at) - set_f32(low)) * inverse)
            store(work, CODES + at // 4, narrow_i8(code(q)))
        pack(work + CODES, d, low, out)

    return _encode


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
def _inverse(d):
    return np.float32(1) / d if d != 0 else np.float32(0)


@cache
def rounded_block(name: str) -> Callable[..., Any]:
    """The same without a search: the largest weights fix the grid."""
    f = FORMATS[name]
    pack, has_low, last = pack_32(f.top, f.has_low), f.has_low, f.top
    top, middle = np.float32(f.top), np.float32((f.top + 1) // 2)

    @jit(**UNFUSED)
    def _grid(x):
        """d, the offset as stored, and the number to add before rounding down."""
        if has_low:
            low, high = ends(x, 32)
            return (high - low) / top, low, np.float32(0.5)
        return _top(x) / -middle, np.float32(0), middle + np.float32(0.5)

    @jit(**UNFUSED)
    def _encode(x, w, work, out):
        d, low, shift = _grid(x)
        inverse = _inverse(d)
        for at in (0, 64):
            y = (load_f32(x, at) - set_f32(low)) * set_f32(inverse) + set_f32(shift)
            q = imin(imax(trunc_i32(y), set_i32(0)), set_i32(last))
            store(work, at // 4, narrow_i8(q))
        pack(work, d, low, out)

    return _encode


@jit(**UNFUSED)
def round_q8_0(x, w, work, out):
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
