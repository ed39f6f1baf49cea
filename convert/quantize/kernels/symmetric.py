"""The search for a scale: w = s · q, with q from a list of levels.

Sixteen candidates at a time, one in each lane. Each is refined by alternating: the levels for a
scale, then the scale that fits these levels best:

    q_j = level nearest to x_j / s,     s = Σ w_j x_j q_j / Σ w_j q_j²

The candidates begin where the largest weight falls on the first or last level, or beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....jit.cached import jit
from ....jit.simd import bcast_f32, fma, load_f32, rint, set_f32, to_i32, vmax, vmin
from ....ops.reference.quants import IQ4_VALUES
from .vectors import best_lane, extreme, lane_of, where_above

TINY = np.float32(1e-30)


@dataclass(frozen=True)
class Levels:
    """The numbers that codes stand for."""

    snap: Any  # kernel: float32 lanes to the nearest level
    code: Any  # kernel: levels to their codes, int32 lanes
    ends: tuple[float, float]


@cache
def uniform(n: int) -> Levels:
    """-n … n - 1, codes 0 … 2 n - 1."""
    low, high = np.float32(-n), np.float32(n - 1)

    @jit
    def _snap(y):
        return vmin(vmax(rint(y), set_f32(low)), set_f32(high))

    @jit
    def _code(q):
        return to_i32(q) + n

    return Levels(_snap, _code, (-n, n - 1))


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

    16 * vectors candidates, improved `passes` times. They put the largest weight between
    1 - below and 1 + above of the first level, and of the last one.
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
