"""The kernel of a selective scan: one token after the other, 16 columns of a state at a time.

    S = e S + B (s x)^T             s = softplus(dt + bias), e = exp(rate s)
    y = S^T C + D x

One pass over a block of columns, which stays in the first cache, updates it and multiplies it by C:
three multiplications or multiply-adds of each element. So reading token by token costs a prompt no
more than the chunked form (state-space duality) would, and its bits do not depend on where a prompt
is cut. Source: Mamba 2, arXiv 2405.21060, equations 1 and 2, with a scalar rate for each head.
"""

from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.simd import (
    bcast_f32,
    fma,
    load_f32,
    load_tail,
    set_f32,
    store,
    store_tail,
    vexp,
)
from ..pointwise.elementwise import softplus
from .scan_layout import COLUMNS, ScanHeads, ScanRows


@jit
def _update_row(state, e, x, b, i):
    """Row i of e S + b x^T, which is stored."""
    s = fma(bcast_f32(b, 4 * i), x, e * load_f32(state, 64 * i))
    store(state, 64 * i, s)
    return s


@jit
def update_and_product(state, e, x, b, c, n):
    """S = e S + b x^T, then S^T c; even and odd rows are summed apart, so that no sum waits for
    itself."""
    y = odd = set_f32(0.0)
    for i in range(0, n - 1, 2):
        y = fma(bcast_f32(c, 4 * i), _update_row(state, e, x, b, i), y)
        odd = fma(bcast_f32(c, 4 * i + 4), _update_row(state, e, x, b, i + 1), odd)
    if n % 2:
        y = fma(bcast_f32(c, 4 * n - 4), _update_row(state, e, x, b, n - 1), y)
    return y + odd


@jit
def _read_tokens(heads, h, block, n_tokens, rows):
    """All tokens of columns 16 block … 16 block + 15 of head h; the last ones may be missing."""
    n, first = heads.state_size, COLUMNS * block
    width, inner = min(COLUMNS, heads.head_dim - first), heads.n_heads * heads.head_dim
    state = rows.state + 64 * n * (h * ((heads.head_dim + COLUMNS - 1) // COLUMNS) + block)
    row, place, at_h = 4 * (inner + 2 * heads.n_groups * n), 4 * (h * heads.head_dim + first), 4 * h
    b = rows.xbc + 4 * (inner + n * (h * heads.n_groups // heads.n_heads))
    rate, bias, skip = (
        bcast_f32(rows.rates, at_h),
        bcast_f32(rows.bias, at_h),
        bcast_f32(rows.skip, at_h),
    )
    for t in range(n_tokens):
        step = softplus(bcast_f32(rows.dt, at_h + 4 * t * heads.n_heads) + bias)
        x, c = load_tail(rows.xbc, place + t * row, width), b + 4 * n * heads.n_groups
        y = update_and_product(state, vexp(rate * step), step * x, b, c, n)
        store_tail(rows.out, place + 4 * t * inner, width, fma(skip, x, y))
        b += row


@kernel
def scan_kernel(share: Share, rows: ScanRows, n_tokens: int, heads: ScanHeads):
    """Item i is block i % blocks of the columns of head i // blocks.

    Reads and writes the states once.
    """
    blocks = (heads.head_dim + COLUMNS - 1) // COLUMNS
    item = take(share.ticket)
    while item < heads.n_heads * blocks:
        _read_tokens(heads, item // blocks, item % blocks, n_tokens, rows)
        item = take(share.ticket)
