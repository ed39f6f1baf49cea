"""The kernel of gated norms."""

import math

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import load_tail, set_f32, store_tail
from ..pointwise.elementwise import silu
from ..pointwise.norms import sum_squares


@jit
def _gated_row(x, weight, gate, n, factor, out):
    """out = x * factor * weight * silu(gate)."""
    for i in range(0, n, 16):
        m = min(16, n - i)
        y = load_tail(x, 4 * i, m) * set_f32(factor) * load_tail(weight, 4 * i, m)
        store_tail(out, 4 * i, m, y * silu(load_tail(gate, 4 * i, m)))


@kernel
def gated_norm_kernel(
    share: Share, x: int, n_rows: int, n: int, weight: int, gate: int, out: int, eps: float
):
    """RMS norm of each row of x (n_rows, n), times silu(gate); addresses. Reads x twice."""
    first, stop = bounds(share, n_rows)
    for r in range(first, stop):
        place = 4 * n * r
        factor = 1.0 / math.sqrt(sum_squares(x + place, n, 0.0) / n + eps)
        _gated_row(x + place, weight, gate + place, n, factor, out + place)
