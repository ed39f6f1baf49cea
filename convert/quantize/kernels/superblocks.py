"""Blocks of 256 weights in groups, each with an integer scale, for some formats a minimum.

    Q3_K, Q6_K         w = d · scale · q
    Q2_K, Q4_K, Q5_K   w = d · scale · q - dmin · minimum

First, each group gets a scale (and a minimum); d (and dmin) follows from the largest of
them. Then the integers are chosen for d and dmin as stored (f16), by their error. Last,
d and dmin are fitted to these integers:

    Σ w_j (x_j - d a_j + dmin b_j)² → min,   a_j = scale · q_j,   b_j = minimum
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....jit.cached import jit
from ....jit.simd import (
    bcast_f32,
    fma,
    hmax,
    hsum,
    load_f32,
    load_one_f32,
    narrow_i8,
    rint,
    set_f32,
    store,
    to_i32,
    vmax,
    vmin,
)
from .packing import pack_q2_k, pack_q3_k, pack_q4_k, pack_q5_k, pack_q6_k
from .searches import affine_search, scale_search, uniform
from .vectors import best_lane, extreme, half, lane_of, reciprocal

# What a thread works in, bytes from its start.
LANES, SCALES, MINIMA, STEPS, LOWS = 0, 64, 128, 192, 256
BEST_STEPS, BEST_LOWS, CODES = 320, 384, 448


@dataclass(frozen=True)
class ScaledFormat:
    """q from -n to n - 1, integer scales from -most to most - 1, for groups of 16.

    search: arguments of `scale_search`; rounds: how often d is fitted.
    """

    n: int
    most: int
    search: tuple[float, float, int, int]
    pack: Any
    rounds: int


@dataclass(frozen=True)
class OffsetFormat:
    """q up to `top`, groups of `group` weights, integer scales and minima up to `most`."""

    top: int
    group: int
    most: int
    cuts: tuple[float, ...]
    passes: int
    pack: Any
    rounds: int


SCALED = {
    "Q3_K": ScaledFormat(4, 32, (0.4, 0.3, 1, 2), pack_q3_k, 3),
    "Q6_K": ScaledFormat(32, 128, (0.15, 0.05, 1, 1), pack_q6_k, 2),
}
OFFSET = {
    "Q2_K": OffsetFormat(3, 16, 15, (-0.1, 0.0, 0.1, 0.2), 3, pack_q2_k, 3),
    "Q4_K": OffsetFormat(15, 32, 63, (-0.03, 0.0, 0.03, 0.06), 1, pack_q4_k, 2),
    "Q5_K": OffsetFormat(31, 32, 63, (-0.015, 0.0, 0.015, 0.03), 1, pack_q5_k, 2),
}


@cache
def _group_errors(snap: Any, group: int) -> Callable[..., Any]:
    """The jitted function of a group's squared errors, for 16 pairs of a scale and a minimum."""

    @jit
    def _errors(x, w, scale, low):
        inverse, error = reciprocal(scale), set_f32(0.0)
        for at in range(0, 4 * group, 4):
            xj = bcast_f32(x, at) + low
            off = xj - snap(xj * inverse) * scale
            error = fma(bcast_f32(w, at) * off, off, error)
        return error

    return _errors


@cache
def scaled_encoder(name: str) -> Callable[..., Any]:
    """The jitted encoder of one block: encode(x, w, work, out), all of them addresses."""
    f = SCALED[name]
    levels = uniform(-f.n, f.n - 1)
    snap, code, pack, rounds = levels.snap, levels.code, f.pack, f.rounds
    search, group_errors = scale_search(levels, 16, *f.search), _group_errors(snap, 16)
    lowest, highest = np.float32(-f.most), np.float32(f.most - 1)
    around = np.arange(16, dtype=np.float32) - np.float32(8)

    @jit
    def _choose(x, w, d, work):
        """Integer scales for d; the error, and the sums that the best d for them follows from."""
        error = xa = aa = np.float32(0)
        for g in range(16):
            xg, wg = x + 64 * g, w + 64 * g
            middle = set_f32(load_one_f32(work, SCALES + 4 * g) / d)
            near = rint(middle) + load_f32(around, 0)
            steps = vmin(vmax(near, set_f32(lowest)), set_f32(highest))
            errors = group_errors(xg, wg, steps * set_f32(d), set_f32(0.0))
            lane = best_lane(set_f32(0.0) - errors, work + LANES)
            error += lane_of(errors, lane, work + LANES)
            chosen = lane_of(steps, lane, work + LANES)
            store(work, STEPS + 4 * g, chosen)
            xv, wv = load_f32(xg, 0), load_f32(wg, 0)
            a = snap(xv * reciprocal(set_f32(chosen * d))) * set_f32(chosen)
            xa += hsum(wv * xv * a)
            aa += hsum(wv * a * a)
        return error, xa, aa

    @jit
    def _encode(x, w, work, out):
        for g in range(16):
            store(work, SCALES + 4 * g, search(x + 64 * g, w + 64 * g, work + LANES))
        store(work, BEST_STEPS, set_f32(0.0))
        trial = d = half(extreme(work + SCALES, 16) / lowest, work)
        best = np.float32(np.inf)
        for _ in range(rounds):
            if trial == 0:
                break
            error, xa, aa = _choose(x, w, trial, work)
            if not error < best:
                break
            best, d = error, trial
            store(work, BEST_STEPS, load_f32(work, STEPS))
            trial = half(xa / aa, work) if aa > 0 else np.float32(0)
            if trial == d:
                break
        for g in range(16):
            scale = set_f32(d * load_one_f32(work, BEST_STEPS + 4 * g))
            q = snap(load_f32(x, 64 * g) * reciprocal(scale))
            store(work, CODES + 16 * g, narrow_i8(code(q)))
        pack(work + CODES, work + BEST_STEPS, d, out)

    return _encode


@cache
def offset_encoder(name: str) -> Callable[..., Any]:
    """The same, for formats with minima."""
    f = OFFSET[name]
    group, groups, rounds, pack = f.group, 256 // f.group, f.rounds, f.pack
    snap, most, stride = uniform(0, f.top).snap, np.float32(f.most), 4 * f.group
    search = affine_search(f.top, f.group, f.cuts, f.passes, True)
    group_errors = _group_errors(snap, group)
    fast = np.tile(np.arange(-1, 3, dtype=np.float32), 4)
    slow = np.repeat(np.arange(-1, 3, dtype=np.float32), 4)

    @jit
    def _codes(x, scale, low):
        return snap((x + low) * reciprocal(scale))

    @jit
    def _near(number, unit, offsets):
        """16 integers near number / unit, from 0 to the largest."""
        middle = np.floor(number / unit) if unit > 0 else np.float32(0)
        near = set_f32(np.float32(middle)) + load_f32(offsets, 0)
        return vmin(vmax(near, set_f32(0.0)), set_f32(most))

    @jit
    def _choose(x, w, d, dmin, work):
        """Integers for d and dmin; the error, and the best d and dmin for these integers."""
        error = np.float32(0)
        xa = xb = aa = ab = bb = 0.0
        for g in range(groups):
            xg, wg = x + stride * g, w + stride * g
            steps = _near(load_one_f32(work, SCALES + 4 * g), d, fast)
            lows = _near(load_one_f32(work, MINIMA + 4 * g), dmin, slow)
            errors = group_errors(xg, wg, steps * set_f32(d), lows * set_f32(dmin))
            lane = best_lane(set_f32(0.0) - errors, work + LANES)
            error += lane_of(errors, lane, work + LANES)
            a, b = lane_of(steps, lane, work + LANES), lane_of(lows, lane, work + LANES)
            store(work, STEPS + 4 * g, a)
            store(work, LOWS + 4 * g, b)
            w1 = wx = wq = wqq = wxq = set_f32(0.0)
            for at in range(0, stride, 64):
                xv, wv = load_f32(xg, at), load_f32(wg, at)
                q = _codes(xv, set_f32(a * d), set_f32(b * dmin))
                w1, wx, wq = w1 + wv, fma(wv, xv, wx), fma(wv, q, wq)
                wqq, wxq = fma(wv * q, q, wqq), fma(wv * q, xv, wxq)
            xa, xb = xa + a * hsum(wxq), xb - b * hsum(wx)
            aa, ab, bb = aa + a * a * hsum(wqq), ab - a * b * hsum(wq), bb + b * b * hsum(w1)
        determinant = aa * bb - ab * ab
        if determinant > 1e-6 * aa * bb:
            d = np.float32((xa * bb - xb * ab) / determinant)
            dmin = np.float32((xb * aa - xa * ab) / determinant)
        elif aa > 0:
            d = np.float32(xa / aa)
        return error, d, dmin

    @jit
    def _encode(x, w, work, out):
        zero = set_f32(0.0)
        for at in (SCALES, MINIMA, BEST_STEPS, BEST_LOWS):
            store(work, at, zero)
        for g in range(groups):
            scale, low = search(x + stride * g, w + stride * g, work + LANES)
            store(work, SCALES + 4 * g, max(scale, np.float32(0)))
            store(work, MINIMA + 4 * g, -low)
        d = half(hmax(load_f32(work, SCALES)) / most, work)
        dmin = half(hmax(load_f32(work, MINIMA)) / most, work)
        best, trial, trial_min = np.float32(np.inf), d, dmin
        for _ in range(rounds):
            error, next_d, next_min = _choose(x, w, trial, trial_min, work)
            if not error < best:
                break
            best, d, dmin = error, trial, trial_min
            store(work, BEST_STEPS, load_f32(work, STEPS))
            store(work, BEST_LOWS, load_f32(work, LOWS))
            trial, trial_min = half(next_d, work), half(next_min, work)
            if (trial == d and trial_min == dmin) or trial < 0 or trial_min < 0:
                break
        for g in range(groups):
            a, b = load_one_f32(work, BEST_STEPS + 4 * g), load_one_f32(work, BEST_LOWS + 4 * g)
            for at in range(0, stride, 64):
                q = _codes(load_f32(x, stride * g + at), set_f32(a * d), set_f32(b * dmin))
                store(work, CODES + (stride * g + at) // 4, narrow_i8(to_i32(q)))
        pack(work + CODES, work + BEST_STEPS, work + BEST_LOWS, d, dmin, out)

    return _encode
