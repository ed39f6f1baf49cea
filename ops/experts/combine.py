"""Kernels between and after the experts' matrices: the activation, and the weighted sum."""

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.launch.views import address
from ...jit.simd import bcast_f32, fma, load_tail, set_f32, store_tail
from ..pointwise.codes import ADD
from ..pointwise.elementwise import apply_range
from .arguments import Pairs


@jit
def _add_bias(x, pair, n, bias, expert):
    """Row `pair` of x (pairs, n) += row `expert` of bias (experts, n); addresses, or bias 0."""
    if bias:
        row = x + 4 * n * pair
        apply_range(ADD, row, bias + 4 * n * expert, 0.0, row, 0, n)


@kernel
def activate_kernel(
    share: Share,
    op: int,
    gate: int,
    up: int,
    n: int,
    gate_bias: int,
    up_bias: int,
    pairs: Pairs,
    n_pairs: int,
):
    """gate (pairs, n) = op(gate + its expert's gate_bias, up + its up_bias); addresses."""
    first, stop = bounds(share, n_pairs)
    for pair in range(first, stop):
        _add_bias(gate, pair, n, gate_bias, pairs.experts[pair])
        _add_bias(up, pair, n, up_bias, pairs.experts[pair])
        row = 4 * n * pair
        apply_range(op, gate + row, up + row, 0.0, gate + row, 0, n)


@kernel
def combine_kernel(share: Share, x: int, n: int, bias: int, pairs: Pairs, n_tokens: int, out: int):
    """out (T, n) = the sum of each token's weights times (row of x + its expert's bias), in the
    order of its choice. Addresses: x (pairs, n) sorted; bias (experts, n) or 0."""
    k, vectors, weights = pairs.ids.shape[1], (n + 15) // 16, address(pairs.weights)
    first, stop = bounds(share, n_tokens * vectors)
    for i in range(first, stop):
        t, column = i // vectors, i % vectors * 16
        count, total = min(16, n - column), set_f32(0.0)
        for j in range(k):
            y = load_tail(x, 4 * (n * pairs.places[t, j] + column), count)
            if bias:
                y = y + load_tail(bias, 4 * (n * pairs.ids[t, j] + column), count)
            total = fma(bcast_f32(weights, 4 * (k * t + j)), y, total)
        store_tail(out, 4 * (n * t + column), count, total)
