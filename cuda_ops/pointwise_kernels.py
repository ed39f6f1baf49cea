"""The kernels of `pointwise`."""

import triton
import triton.language as tl

SWIGLU, GEGLU, ADD, SCALE, SOFTCAP, SIGMOID = (tl.constexpr(i) for i in range(6))
GELU, RELU_SQUARED, MULTIPLY, SOFTPLUS = (tl.constexpr(i) for i in range(6, 10))


@triton.jit
def _gelu(x):
    """x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def _softcap(x, cap):
    """cap tanh(x / cap); near 0 by a series, where 1 - 2 / (e^2u + 1) would lose digits.

    The series is Cephes' tanhf, as in `jit.simd.math`.
    """
    u = x / cap
    size = tl.abs(u)
    z = u * u
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = (p * z - 5.37397155531e-2) * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(size, 20.0)) + 1.0)
    return cap * tl.where(size < 0.625, p * z * u + u, tl.where(u < 0, -far, far))


@triton.jit
def elementwise_kernel(x, y, out, n, c, OP: tl.constexpr, BLOCK: tl.constexpr):
    """out = op(x, y, c) for n floats."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    a = tl.load(x + i, inside, 0.0)
    if OP == SCALE:
        z = a * c
    elif OP == SOFTCAP:
        z = _softcap(a, c)
    elif OP == GELU:
        z = _gelu(a)
    elif OP == RELU_SQUARED:
        positive = tl.maximum(a, 0.0)
        z = positive * positive
    else:
        b = tl.load(y + i, inside, 0.0)
        if OP == ADD:
            z = a + b
        elif OP == SWIGLU:
            z = a / (1.0 + tl.exp(-a)) * b
        elif OP == SIGMOID:
            z = b / (1.0 + tl.exp(-a))
        elif OP == SOFTPLUS:
            z = b * (tl.maximum(a, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(a))))
        else:
            z = _gelu(a) * b
    tl.store(out + i, z, inside)


@triton.jit
def rows_kernel(x, y, n_rows, n, OP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of x (n_rows, n) in place: ADD or MULTIPLY by the row y (n,), or SCALE row r by
    y[r]."""
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    i = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (r < n_rows) & (i < n)
    at = x + r.to(tl.int64) * n + i
    a = tl.load(at, inside, 0.0)
    if OP == ADD:
        a += tl.load(y + i, i < n, 0.0)
    elif OP == MULTIPLY:
        a *= tl.load(y + i, i < n, 0.0)
    else:
        a *= tl.load(y + r, r < n_rows, 0.0)
    tl.store(at, a, inside)


@triton.jit
def norm_kernel(
    x, branch, weight, bias, out, n_rows, n, eps, CENTRED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Norm of each row of x (n_rows, n <= BLOCK), to which `branch` is added first, in place.

    branch, bias: None where there is none. A program holds ROWS whole rows in registers and reads
    them once.
    """
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    inside = (r < n_rows) & (i < n)
    at = r.to(tl.int64) * n + i
    a = tl.load(x + at, inside, 0.0)
    if branch is not None:
        a += tl.load(branch + at, inside, 0.0)
        tl.store(x + at, a, inside)
    if CENTRED:
        a = tl.where(inside, a - (tl.sum(a, 1) / n)[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(a * a, 1) / n + eps)
    y = a * factor[:, None] * tl.load(weight + i, i < n, 0.0)
    if bias is not None:
        y += tl.load(bias + i, i < n, 0.0)
    tl.store(out + at, y, inside)


@triton.jit
def rope_kernel(
    q, k, table, q_heads, k_heads, n, half, NEOX: tl.constexpr, HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """The heads of one token, (q_heads, n) and (k_heads, n), in place; table (2 half,) a token."""
    t = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    i = tl.arange(0, PAIRS)[None, :]
    cos = tl.load(table + t * 2 * half + i, i < half, 0.0)
    sin = tl.load(table + t * 2 * half + half + i, i < half, 0.0)
    first = i if NEOX else 2 * i
    second = i + half if NEOX else 2 * i + 1
    of_q = head < q_heads
    rows = tl.where(of_q, t * q_heads + head, t * k_heads + head - q_heads) * n
    for x in tl.static_range(2):
        base = k if x else q
        inside = (i < half) & ((head >= q_heads) & (head < q_heads + k_heads) if x else of_q)
        a = tl.load(base + rows + first, inside, 0.0)
        b = tl.load(base + rows + second, inside, 0.0)
        tl.store(base + rows + first, a * cos - b * sin, inside)
        tl.store(base + rows + second, a * sin + b * cos, inside)
