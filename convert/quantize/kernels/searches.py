"""The searches for a grid: w = s · q (scale), or w = s · q + low (scale and offset).

Sixteen candidates at a time, one in each lane. Each is refined in turns: the codes for the grid,
then the grid that fits these codes best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....jit.cached import jit
from ....jit.simd import bcast_f32, fma, hsum, load_f32, rint, set_f32, to_i32, vmax, vmin
from ....ops.reference.quants import IQ4_VALUES
from .vectors import best_lane, ends, extreme, lane_of, reciprocal, where_above

TINY = np.float32(1e-30)


@dataclass(frozen=True)
class Levels:
    """The numbers that codes stand for."""

    snap: Any  # kernel: float32 lanes to the nearest level
    code: Any  # kernel: levels to their codes, int32 lanes
    ends: tuple[float, float]


@cache
def uniform(first: int, last: int) -> Levels:
    """The whole numbers first … last; their codes begin at 0."""
    low, high = np.float32(first), np.float32(last)

    @jit
    def _snap(y):
        return vmin(vmax(rint(y), set_f32(low)), set_f32(high))

    @jit
    def _code(q):
        return to_i32(q) - first

    return Levels(_snap, _code, (first, last))


@cache
def table() -> Levels:
    """The 16 levels of IQ4_NL; a number halfway between two goes to the lower one."""
    values = np.array(IQ4_VALUES, np.float32)
    middles, gaps = (values[1:] + values[:-1]) / 2, np.diff(values)
    first = values[0]

    @jit
    def _snap(y):
        q, zero = set_f32(first), set_f32(0.0)
        for i in range(15):
            q += where_above(y, set_f32(middles[i]), set_f32(gaps[i]), zero)
        return q

    @jit
    def _code(q):
        i, zero, one = set_f32(0.0), set_f32(0.0), set_f32(1.0)
        for k in range(15):
            i += where_above(q, set_f32(middles[k]), one, zero)
        return to_i32(i)

    return Levels(_snap, _code, (float(values[0]), float(values[-1])))


@cache
def scale_search(
    levels: Levels, n: int, below: float, above: float, vectors: int, passes: int
) -> Callable[..., Any]:
    """The jitted search: s = search(x, w, work) for n weights at an address.

    16 * vectors candidates, improved `passes` times:

        q_j = level nearest to x_j / s,     s = Σ w_j x_j q_j / Σ w_j q_j²

    They put the largest weight between 1 - below and 1 + above of the first level, and of the last
    one.
    """
    snap, (low, high) = levels.snap, levels.ends
    spread = np.linspace(1 - below, 1 + above, 8 * vectors)
    grid = np.concatenate([low * spread, high * spread]).astype(np.float32)

    @jit
    def _sums(x, w, inverse):
        xq = qq = set_f32(0.0)
        for at in range(0, 4 * n, 4):
            xj = bcast_f32(x, at)
            q = snap(xj * inverse)
            wq = bcast_f32(w, at) * q
            xq, qq = fma(wq, xj, xq), fma(wq, q, qq)
        return xq, qq

    @jit
    def _search(x, w, work):
        top = extreme(x, n)
        if abs(top) < TINY:
            return np.float32(0)
        zero = set_f32(0.0)
        best_gain = best_scale = zero
        for at in range(0, 64 * vectors, 64):
            inverse = load_f32(grid, at) / set_f32(top)
            for _ in range(passes):
                xq, qq = _sums(x, w, inverse)
                inverse = where_above(xq * xq, zero, qq / xq, zero)
            xq, qq = _sums(x, w, inverse)
            gain = where_above(qq, zero, xq * xq / qq, zero)
            best_scale = where_above(gain, best_gain, xq / qq, best_scale)
            best_gain = vmax(gain, best_gain)
        return lane_of(best_scale, best_lane(best_gain, work), work)

    return _search


@cache
def affine_search(
    top: int, n: int, cuts: tuple[float, ...], passes: int, negative: bool
) -> Callable[..., Any]:
    """The jitted search: (s, low) = search(x, w, work) for n weights at an address, q in 0 … top.

    cuts: four shares of the range; each candidate cuts off one of them at either end. negative:
    low must not exceed 0. Refined by the normal equations of Σ w_j (x_j - s q_j - low)² → min.
    """
    low_cut = np.repeat(np.array(cuts, np.float32), 4)
    high_cut = np.tile(np.array(cuts, np.float32), 4)
    last, snap = np.float32(top), uniform(0, top).snap

    @jit
    def _sums(x, w, scale, low):
        inverse = reciprocal(scale)
        q1 = qq = xq = set_f32(0.0)
        for at in range(0, 4 * n, 4):
            xj = bcast_f32(x, at)
            q = snap((xj - low) * inverse)
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
