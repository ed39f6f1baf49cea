"""Elementwise kernels: activations, gated or not, sums, products, softcap."""

import math

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import (
    fma,
    load_f32,
    load_one_f32,
    load_tail,
    set_f32,
    store,
    store_tail,
    vabs,
    vexp,
    vmax,
    vmin,
    vtanh,
)
from .codes import (
    ADD,
    CLAMPED_SWIGLU,
    GEGLU,
    GELU,
    MULTIPLY,
    RELU_SQUARED,
    SCALE,
    SIGMOID,
    SOFTPLUS,
    SWIGLU,
)

_GELU = 2 * math.sqrt(2 / math.pi)
_CUBE = _GELU * 0.044715
ALPHA, LIMIT = 1.702, 7.0  # gpt-oss: "swiglu" of its reference model


@jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    one = set_f32(1.0)
    return one / (one + vexp(set_f32(0.0) - x))


@jit
def silu(x):
    """x / (1 + exp(-x))."""
    one = set_f32(1.0)
    return x / (one + vexp(set_f32(0.0) - x))


@jit
def softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log(1 + y), y = exp(-|x|).

    log(1 + y) = 2 artanh(s), s = y / (2 + y) <= 1/3, by its series, to 1 ulp.
    """
    zero, one = set_f32(0.0), set_f32(1.0)
    y = vexp(zero - vabs(x))
    s = y / (y + one + one)
    z = s * s
    p = set_f32(1 / 15)
    for i in range(6, -1, -1):
        p = fma(p, z, set_f32(1 / (2 * i + 1)))
    return vmax(x, zero) + (s + s) * p


@jit
def _gelu(x):
    """0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) for u = sqrt(2/pi) (x + 0.044715 x^3)."""
    one = set_f32(1.0)
    u2 = fma(x * x * x, set_f32(_CUBE), x * set_f32(_GELU))
    return x / (one + vexp(set_f32(0.0) - u2))


@jit
def _clamped_swiglu(gate, up):
    """g / (1 + exp(-ALPHA g)) (u + 1), g = min(gate, LIMIT), u = up clamped to -LIMIT … LIMIT."""
    one, limit = set_f32(1.0), set_f32(LIMIT)
    g, u = vmin(gate, limit), vmax(vmin(up, limit), set_f32(-LIMIT))
    return g / (one + vexp(g * set_f32(-ALPHA))) * (u + one)


@jit
def _apply(op, x, y, c):
    if op == SWIGLU:
        return silu(x) * y
    if op == GEGLU:
        return _gelu(x) * y
    if op == CLAMPED_SWIGLU:
        return _clamped_swiglu(x, y)
    if op == ADD:
        return x + y
    if op == SCALE:
        return x * set_f32(c)
    if op == SIGMOID:
        return sigmoid(x) * y
    if op == SOFTPLUS:
        return softplus(x) * y
    if op == GELU:
        return _gelu(x)
    if op == RELU_SQUARED:
        positive = vmax(x, set_f32(0.0))
        return positive * positive
    if op == MULTIPLY:
        return x * y
    return vtanh(x * set_f32(1.0 / c)) * set_f32(c)


@jit
def apply_range(op, a, b, c, out, first, stop):
    """out = op(a, b, c) for elements first .. stop-1 of arrays at three addresses."""
    whole = first + (stop - first) // 16 * 16
    for i in range(first, whole, 16):
        store(out, 4 * i, _apply(op, load_f32(a, 4 * i), load_f32(b, 4 * i), c))
    if whole < stop:
        rest = stop - whole
        z = _apply(op, load_tail(a, 4 * whole, rest), load_tail(b, 4 * whole, rest), c)
        store_tail(out, 4 * whole, rest, z)


@kernel
def elementwise_kernel(share: Share, op: int, x: int, y: int, out: int, n: int, c: float):
    """out = op(x, y, c) for n floats at addresses. Reads 4 or 8 bytes per element, writes 4."""
    first, stop = bounds(share, (n + 15) // 16)
    apply_range(op, x, y, c, out, 16 * first, min(16 * stop, n))


@kernel
def rows_kernel(share: Share, op: int, x: int, y: int, n_rows: int, n: int):
    """Rows of x (n_rows, n) in place: ADD or MULTIPLY by the row y (n,), or SCALE row r by
    y[r]; addresses."""
    first, stop = bounds(share, n_rows)
    for r in range(first, stop):
        row = x + 4 * n * r
        if op == ADD:
            apply_range(ADD, row, y, 0.0, row, 0, n)
        elif op == MULTIPLY:
            apply_range(MULTIPLY, row, y, 0.0, row, 0, n)
        else:
            apply_range(SCALE, row, row, load_one_f32(y, 4 * r), row, 0, n)


@kernel
def split_kernel(share: Share, x: int, n_rows: int, n: int, first: int, second: int):
    """Row r of x (n_rows, 2 n) into rows r of two arrays (n_rows, n); addresses."""
    begin, end = bounds(share, n_rows)
    for r in range(begin, end):
        for i in range(0, n, 16):
            m = min(16, n - i)
            store_tail(first + 4 * n * r, 4 * i, m, load_tail(x + 8 * n * r, 4 * i, m))
            store_tail(second + 4 * n * r, 4 * i, m, load_tail(x + 8 * n * r + 4 * n, 4 * i, m))
