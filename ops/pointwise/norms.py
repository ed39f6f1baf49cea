"""The kernel of norms: rms_norm, layer_norm, and both after adding a branch to the input."""

import math

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import first_lanes, fma, hsum, load_f32, load_tail, set_f32, store, store_tail
from .codes import ADD
from .elementwise import apply_range


@jit
def _sum(x, n):
    """Sum of n floats at an address."""
    total, whole = set_f32(0.0), n // 16 * 16
    for i in range(0, whole, 16):
        total = total + load_f32(x, 4 * i)
    if whole < n:
        total = total + load_tail(x, 4 * whole, n - whole)
    return hsum(total)


@jit
def sum_squares(x, n, mean):
    """Sum of (x - mean)^2 over n floats at an address."""
    total, m, whole = set_f32(0.0), set_f32(mean), n // 16 * 16
    for i in range(0, whole, 16):
        d = load_f32(x, 4 * i) - m
        total = fma(d, d, total)
    if whole < n:
        d = load_tail(x, 4 * whole, n - whole) - first_lanes(mean, n - whole)
        total = fma(d, d, total)
    return hsum(total)


@jit
def _norm_row(x, weight, bias, n, mean, factor, out):
    """out = (x - mean) * factor * weight (+ bias, unless its address is 0)."""
    m, f, whole = set_f32(mean), set_f32(factor), n // 16 * 16
    for i in range(0, whole, 16):
        y = (load_f32(x, 4 * i) - m) * f * load_f32(weight, 4 * i)
        if bias != 0:
            y = y + load_f32(bias, 4 * i)
        store(out, 4 * i, y)
    if whole < n:
        rest = n - whole
        y = (load_tail(x, 4 * whole, rest) - m) * f * load_tail(weight, 4 * whole, rest)
        if bias != 0:
            y = y + load_tail(bias, 4 * whole, rest)
        store_tail(out, 4 * whole, rest, y)


@kernel
def norm_kernel(
    share: Share,
    x: int,
    n_rows: int,
    n: int,
    branch: int,
    weight: int,
    bias: int,
    centred: int,
    out: int,
    eps: float,
):
    """Norm of each row of x (n_rows, n), to which `branch` is added first, in place.

    x, branch, weight, bias and out are addresses; 0 means that there is no branch or bias. Reads x
    twice (the second time from L1).
    """
    first, stop = bounds(share, n_rows)
    for r in range(first, stop):
        row = x + 4 * n * r
        if branch != 0:
            apply_range(ADD, row, branch + 4 * n * r, 0.0, row, 0, n)
        mean = _sum(row, n) / n if centred else 0.0
        factor = 1.0 / math.sqrt(sum_squares(row, n, mean) / n + eps)
        _norm_row(row, weight, bias, n, mean, factor, out + 4 * n * r)
