"""Blocks of 32 whose grid is searched for: one float scale, for some formats a float offset."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ....jit.cached import jit
from ....jit.simd import (
    load_f32,
    narrow_i8,
    rint,
    set_f32,
    store,
    to_i32,
    vmax,
    vmin,
)
from .affine import affine_search
from .packing import pack_fives, pack_fives_low, pack_nibbles, pack_nibbles_low
from .symmetric import scale_search, table, uniform
from .vectors import half, reciprocal

CODES = 64  # where codes stand in what a thread works in, after the lanes
F16_MAX = np.float32(65504)

_SCALED: dict[str, tuple[Callable[[], Any], tuple[float, float, int, int], Any]] = {
    "Q4_0": (lambda: uniform(8), (0.4, 0.3, 2, 2), pack_nibbles),
    "Q5_0": (lambda: uniform(16), (0.3, 0.2, 2, 2), pack_fives),
    "IQ4_NL": (table, (0.3, 0.2, 1, 1), pack_nibbles),
}
_OFFSET = {
    "Q4_1": (15, (-0.03, 0.0, 0.03, 0.06), pack_nibbles_low),
    "Q5_1": (31, (-0.015, 0.0, 0.015, 0.03), pack_fives_low),
}


@jit
def _half(x, work):
    """x rounded to f16, clamped: a candidate outside the weights' range may exceed f16."""
    return half(min(max(x, -F16_MAX), F16_MAX), work)


@cache
def scaled_block(name: str) -> Callable[..., Any]:
    """The jitted encoder of one block: encode(x, w, work, out), all of them addresses."""
    make_levels, grid, pack = _SCALED[name]
    levels = make_levels()
    snap, code = levels.snap, levels.code
    search = scale_search(levels, 32, *grid)

    @jit
    def _encode(x, w, work, out):
        d = _half(search(x, w, work), work)
        inverse = reciprocal(set_f32(d))
        for at in (0, 64):
            q = snap(load_f32(x, at) * inverse)
            store(work, CODES + at // 4, narrow_i8(code(q)))
        pack(work + CODES, d, out)

    return _encode


@cache
def offset_block(name: str) -> Callable[..., Any]:
    """The same, for formats with an offset."""
    last, cuts, pack = _OFFSET[name]
    top, search = np.float32(last), affine_search(last, 32, cuts, 2, False)

    @jit
    def _encode(x, w, work, out):
        d, low = search(x, w, work)
        d, low = _half(d, work), _half(low, work)
        inverse = reciprocal(set_f32(d))
        for at in (0, 64):
            q = rint((load_f32(x, at) - set_f32(low)) * inverse)
            q = vmin(vmax(q, set_f32(0.0)), set_f32(top))
            store(work, CODES + at // 4, narrow_i8(to_i32(q)))
        pack(work + CODES, d, low, out)

    return _encode
