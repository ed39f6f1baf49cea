"""The search for a scale and an offset: w = s · q + low, with q in 0 … top.

Sixteen candidates at a time, one in each lane: four different shares cut off one end of the range,
combined with four at the other. Each is refined by alternating: the codes for (s, low), then the
(s, low) that fits these codes best, by the normal equations of

    Σ w_j (x_j - s q_j - low)² → min.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ....jit.cached import jit
from ....jit.simd import bcast_f32, fma, hsum, load_f32, rint, set_f32, vmax, vmin
from .vectors import best_lane, ends, lane_of, reciprocal, where_above

TINY = np.float32(1e-30)


@cache
def affine_search(
    top: int, n: int, cuts: tuple[float, ...], passes: int, negative: bool
) -> Callable[..., Any]:
    """The jitted search: (s, low) = search(x, w, work) for n weights at an address.

    cuts: shares of the range that candidates cut off at an end. negative: low must not exceed 0.
    """
    low_cut = np.repeat(np.array(cuts, np.float32), 4)
    high_cut = np.tile(np.array(cuts, np.float32), 4)
    last = np.float32(top)

    @jit
    def _sums(x, w, scale, low):
        inverse, zero, end = reciprocal(scale), set_f32(0.0), set_f32(last)
        q1 = qq = xq = zero
        for at in range(0, 4 * n, 4):
            xj = bcast_f32(x, at)
            q = vmin(vmax(rint((xj - low) * inverse), zero), end)
            wq = bcast_f32(w, at) * q
            q1, qq, xq = q1 + wq, fma(wq, q, qq), fma(wq, xj, xq)
        return q1, qq, xq

    @jit
    def _fit(w1, x1, q1, qq, xq, scale, low):
        """The best (s, low) for the codes; as they were where the codes are all the same."""
        zero = set_f32(0.0)
        determinant = w1 * qq - q1 * q1
        sound = determinant * set_f32(1e6) - w1 * qq
        new_scale = where_above(sound, zero, (w1 * xq - x1 * q1) / determinant, scale)
        new_low = where_above(sound, zero, (qq * x1 - q1 * xq) / determinant, low)
        if negative:
            through_zero = where_above(qq, zero, xq / qq, zero)
            new_scale = where_above(new_low, zero, through_zero, new_scale)
            new_low = where_above(new_low, zero, zero, new_low)
        return new_scale, new_low

    @jit
    def _search(x, w, work):
        first, end = ends(x, n)
        if negative:
            first = min(first, np.float32(0))
        if end - first < TINY:
            return np.float32(0), first
        w_sum = x_sum = set_f32(0.0)
        for at in range(0, 4 * n, 64):
            w_sum, x_sum = w_sum + load_f32(w, at), fma(load_f32(w, at), load_f32(x, at), x_sum)
        w1, x1 = set_f32(hsum(w_sum)), set_f32(hsum(x_sum))
        size = set_f32(end - first)
        low = fma(load_f32(low_cut, 0), size, set_f32(first))
        high = set_f32(end) - load_f32(high_cut, 0) * size
        scale = (high - low) / set_f32(last)
        for _ in range(passes):
            q1, qq, xq = _sums(x, w, scale, low)
            scale, low = _fit(w1, x1, q1, qq, xq, scale, low)
        q1, qq, xq = _sums(x, w, scale, low)
        scale, low = _fit(w1, x1, q1, qq, xq, scale, low)
        # The squared error but for the part that all candidates share, Σ w x².
        two = set_f32(2.0)
        fit = scale * (two * xq - scale * qq) + low * (two * x1 - two * scale * q1 - low * w1)
        lane = best_lane(fit, work)
        return lane_of(scale, lane, work), lane_of(low, lane, work)

    return _search
