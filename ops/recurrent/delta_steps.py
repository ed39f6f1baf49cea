"""The kernel that prepares the steps of a gated delta rule: unit keys and queries, gates."""

import math

import numpy as np

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.launch.views import address
from ...jit.simd import (
    fma,
    hsum,
    load_f32,
    load_tail,
    set_f32,
    store,
    vexp,
)
from ..pointwise.codes import SCALE
from ..pointwise.elementwise import apply_range, sigmoid, softplus
from .arguments import DeltaInputs, DeltaSteps
from .layout import DeltaHeads


@jit
def _gates(inputs, steps, t, n):
    """exp(g) and beta of n value heads, 16 at a time; g = rate softplus(a + bias)."""
    decays, betas = address(steps.decays[t]), address(steps.betas[t])
    for h in range(0, n, 16):
        at, width = 4 * (t * n + h), min(16, n - h)
        x = load_tail(inputs.a, at, width) + load_tail(inputs.bias, 4 * h, width)
        store(decays, 4 * h, vexp(load_tail(inputs.rates, 4 * h, width) * softplus(x)))
        store(betas, 4 * h, sigmoid(load_tail(inputs.b, at, width)))


@jit
def _dot(x, y, n):
    """Product of n floats at two addresses."""
    total, whole = set_f32(0.0), n // 16 * 16
    for i in range(0, whole, 16):
        total = fma(load_f32(x, 4 * i), load_f32(y, 4 * i), total)
    if whole < n:
        total = fma(load_tail(x, 4 * whole, n - whole), load_tail(y, 4 * whole, n - whole), total)
    return hsum(total)


@jit
def _unit(x, n, eps, size, out):
    """out = size x / sqrt(x . x + eps), n floats."""
    factor = size / math.sqrt(_dot(x, x, n) + eps)
    apply_range(SCALE, x, x, factor, out, 0, n)


@kernel
def steps_kernel(
    share: Share,
    qk: int,
    inputs: DeltaInputs,
    steps: DeltaSteps,
    n_tokens: int,
    heads: DeltaHeads,
    eps: float,
):
    """`DeltaSteps` of n_tokens tokens. qk: address of their q and k, in rows of `heads.row` floats.

    Reads and writes q and k once.
    """
    first, stop = bounds(share, n_tokens)
    n, n_keys = heads.key_dim, heads.n_keys
    row = 4 * (2 * n_keys * n + heads.n_values * heads.value_dim)
    for t in range(first, stop):
        _gates(inputs, steps, t, heads.n_values)
        for j in range(n_keys):
            q = qk + t * row + 4 * n * j
            unit_q = address(steps.keys[j, t])
            _unit(q, n, eps, 1.0 / math.sqrt(n), unit_q)
            _unit(q + 4 * n * n_keys, n, eps, 1.0, unit_q + 4 * n)
            steps.products[t, j] = np.float32(_dot(unit_q, unit_q + 4 * n, n))
