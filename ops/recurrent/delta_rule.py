"""The kernel of the gated delta rule: one token after the other, 16 columns of a state at a time.

    u = S^T k    w = S^T q          of the state S before the token
    d = beta (v - e u)              e = exp(g)
    o = e w + (k . q) d             = S^T q of the state after it
    S = e S + k d^T

One pass over a block of columns, which stays in the first cache, updates it by a token and
multiplies it by k and q of the next one: four multiplications or multiply-adds of each element. The
chunked form (WY representation, 64 tokens) has 4.3 for heads of 128: three products with the state,
and those of the chunk's tokens with each other. So reading token by token costs nothing on a CPU,
and its bits do not depend on where a prompt is cut. Source: Gated Delta Networks, arXiv 2412.06464,
equation 10.
"""

from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address
from ...jit.simd import (
    bcast_f32,
    fma,
    load_f32,
    load_tail,
    prefetch_l1,
    set_f32,
    store,
    store_tail,
)
from .arguments import DeltaSteps
from .layout import COLUMNS, DeltaHeads


@jit
def _add_products(s, q, k, i, w, u):
    """w + q[i] s, u + k[i] s for row i of a state."""
    return fma(bcast_f32(q, 4 * i), s, w), fma(bcast_f32(k, 4 * i), s, u)


@jit
def products(state, q, k, n):
    """S^T q and S^T k; even and odd rows are summed apart, so that no sum waits for itself."""
    w = u = odd_w = odd_u = set_f32(0.0)
    for i in range(0, n - 1, 2):
        w, u = _add_products(load_f32(state, 64 * i), q, k, i, w, u)
        odd_w, odd_u = _add_products(load_f32(state, 64 * i + 64), q, k, i + 1, odd_w, odd_u)
    if n % 2:
        w, u = _add_products(load_f32(state, 64 * n - 64), q, k, n - 1, w, u)
    return w + odd_w, u + odd_u


@jit
def _update_row(state, e, k, d, i):
    """Row i of e S + k d^T, which is stored."""
    s = fma(bcast_f32(k, 4 * i), d, e * load_f32(state, 64 * i))
    store(state, 64 * i, s)
    return s


@jit
def _update(state, e, k, d, n):
    """S = e S + k d^T."""
    for i in range(n):
        _update_row(state, e, k, d, i)


@jit
def update_and_products(state, e, k, d, next_q, next_k, n):
    """`_update`, then `products` with q and k of the next token, with the same bits."""
    w = u = odd_w = odd_u = set_f32(0.0)
    for i in range(0, n - 1, 2):
        s = _update_row(state, e, k, d, i)
        w, u = _add_products(s, next_q, next_k, i, w, u)
        s = _update_row(state, e, k, d, i + 1)
        odd_w, odd_u = _add_products(s, next_q, next_k, i + 1, odd_w, odd_u)
    if n % 2:
        s = _update_row(state, e, k, d, n - 1)
        w, u = _add_products(s, next_q, next_k, n - 1, w, u)
    return w + odd_w, u + odd_u


@jit
def _read_tokens(heads, h, c, n_tokens, steps, states, v, out):
    """All tokens of columns 16 c .. 16 c + 15 of value head h, of which the last may be missing.

    states, v, out: addresses of all states, of the first token's v and of its output.
    """
    n, width = heads.key_dim, min(COLUMNS, heads.value_dim - COLUMNS * c)
    j = h % heads.n_keys if heads.cyclic else h * heads.n_keys // heads.n_values
    state = states + 64 * n * (h * ((heads.value_dim + COLUMNS - 1) // COLUMNS) + c)
    out_row = 4 * heads.n_values * heads.value_dim
    v_row, row = 8 * n * heads.n_keys + out_row, 8 * n
    place = 4 * (h * heads.value_dim + COLUMNS * c)
    q = address(steps.keys[j])
    w, u = products(state, q, q + 4 * n, n)
    for t in range(n_tokens):
        k, at = q + 4 * n, place + t * v_row
        prefetch_l1(v, at + 2 * v_row)
        e, beta = set_f32(steps.decays[t, h]), set_f32(steps.betas[t, h])
        d = beta * (load_tail(v, at, width) - e * u)
        o = fma(set_f32(steps.products[t, j]), d, e * w)
        store_tail(out, place + t * out_row, width, o)
        if t + 1 < n_tokens:
            w, u = update_and_products(state, e, k, d, q + row, k + row, n)
        else:
            _update(state, e, k, d, n)
        q += row


@kernel
def delta_kernel(
    share: Share,
    v: int,
    steps: DeltaSteps,
    states: int,
    out: int,
    n_tokens: int,
    heads: DeltaHeads,
):
    """Item i is block i % blocks of the columns of value head i // blocks.

    v, states, out: addresses of v of the first token, float32 (n_values, value_dim) in rows of
    `heads.row` floats, of the states and of float32 (n_tokens, n_values, value_dim). Reads and
    writes the states once.
    """
    blocks = (heads.value_dim + COLUMNS - 1) // COLUMNS
    item = take(share.ticket)
    while item < heads.n_values * blocks:
        _read_tokens(heads, item // blocks, item % blocks, n_tokens, steps, states, v, out)
        item = take(share.ticket)
