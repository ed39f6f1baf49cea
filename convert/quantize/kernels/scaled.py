"""Blocks of 256 without minima: w = d · scale · q, one integer scale for 16 weights (Q3_K, Q6_K).

First a scale is searched for each group; d follows from the largest of them. Then the integers are
chosen for d as stored (f16), by the error that they give. Last, d is fitted to these integers:

    d = Σ w_j x_j a_j / Σ w_j a_j²,   a_j = scale · q_j
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
    hsum,
    load_f32,
    load_one_f32,
    narrow_i8,
    rint,
    set_f32,
    store,
    vmax,
    vmin,
)
from .packing import pack_q3_k, pack_q6_k
from .symmetric import Levels, scale_search, uniform
from .vectors import best_lane, extreme, half, lane_of, reciprocal

GROUP, GROUPS = 16, 16
# What a thread works in, bytes from its start.
LANES, SCALES, STEPS, BEST, CODES = 0, 64, 128, 192, 256


@dataclass(frozen=True)
class ScaledFormat:
    """q of `levels`, integer scales from -`most` to `most` - 1."""

    levels: Levels
    most: int
    search: Callable[..., Any]
    pack: Any
    rounds: int


@cache
def scaled_encoder(name: str) -> Callable[..., Any]:
    """The jitted encoder of one block: encode(x, w, work, out), all of them addresses."""
    f = FORMATS[name]()
    snap, code, search, pack = f.levels.snap, f.levels.code, f.search, f.pack
    lowest, highest, rounds = np.float32(-f.most), np.float32(f.most - 1), f.rounds
    around = np.arange(16, dtype=np.float32) - np.float32(8)

    @jit
    def _errors(x, w, scale):
        """Squared errors of a group for 16 scales."""
        inverse, error = reciprocal(scale), set_f32(0.0)
        for at in range(0, 4 * GROUP, 4):
            xj = bcast_f32(x, at)
            off = xj - snap(xj * inverse) * scale
            error = fma(bcast_f32(w, at) * off, off, error)
        return error

    @jit
    def _choose(x, w, d, work):
        """Integer scales for d; the error, and the sums that the best d for them follows from."""
        error = xa = aa = np.float32(0)
        for g in range(GROUPS):
            xg, wg = x + 64 * g, w + 64 * g
            middle = set_f32(load_one_f32(work, SCALES + 4 * g) / d)
            steps = vmin(
                vmax(rint(middle) + load_f32(around, 0), set_f32(lowest)), set_f32(highest)
            )
            errors = _errors(xg, wg, steps * set_f32(d))
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
        for g in range(GROUPS):
            store(work, SCALES + 4 * g, search(x + 64 * g, w + 64 * g, work + LANES))
        store(work, BEST, set_f32(0.0))
        trial = d = half(extreme(work + SCALES, GROUPS) / lowest, work)
        best = np.float32(np.inf)
        for _ in range(rounds):
            if trial == 0:
                break
            error, xa, aa = _choose(x, w, trial, work)
            if not error < best:
                break
            best, d = error, trial
            store(work, BEST, load_f32(work, STEPS))
            trial = half(xa / aa, work) if aa > 0 else np.float32(0)
            if trial == d:
                break
        for g in range(GROUPS):
            scale = set_f32(d * load_one_f32(work, BEST + 4 * g))
            q = snap(load_f32(x, 64 * g) * reciprocal(scale))
            store(work, CODES + 16 * g, narrow_i8(code(q)))
        pack(work + CODES, work + BEST, d, out)

    return _encode


def _q3_k() -> ScaledFormat:
    levels = uniform(4)
    return ScaledFormat(levels, 32, scale_search(levels, GROUP, 0.4, 0.3, 1, 2), pack_q3_k, 3)


def _q6_k() -> ScaledFormat:
    levels = uniform(32)
    return ScaledFormat(levels, 128, scale_search(levels, GROUP, 0.15, 0.05, 1, 1), pack_q6_k, 2)


FORMATS: dict[str, Callable[[], ScaledFormat]] = {"Q3_K": _q3_k, "Q6_K": _q6_k}
