"""The kernel of rope: rotates pairs of elements of each head by angles from a table."""

from llvmlite import ir

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import (
    I64,
    INTP,
    const,
    emits,
    f32x8,
    f32x16,
    fma,
    load_f32,
    load_one_f32,
    read,
    shuffle,
    store,
)


@emits(f32x16, f32x16)
def _swap_pairs(b, x):
    """Lanes 1, 0, 3, 2, ..."""
    return shuffle(b, x, [lane ^ 1 for lane in range(16)])


@emits(f32x16, INTP, INTP)
def _spread(b, address, signed):
    """8 floats, each in two lanes; the even lanes negated where `signed` is 1."""
    x = read(b, address, f32x8.ir)
    x.align = 4
    x = shuffle(b, x, [lane // 2 for lane in range(16)])
    signs = ir.Constant(x.type, [-1.0, 1.0] * 8)
    is_signed = b.icmp_signed("!=", signed, ir.Constant(I64, 0))
    return b.fmul(x, b.select(is_signed, signs, const(x.type, 1.0)))


@jit
def _rope_normal(x, table, half):
    """Pairs (2i, 2i + 1) of one head at an address."""
    whole = half // 8 * 8
    for i in range(0, whole, 8):
        cos, sin = _spread(table + 4 * i, 0), _spread(table + 4 * (half + i), 1)
        y = load_f32(x, 8 * i)
        store(x, 8 * i, fma(y, cos, _swap_pairs(y) * sin))
    for i in range(whole, half):
        _rope_pair(x, 8 * i, 8 * i + 4, table, i, half)


@jit
def _rope_neox(x, table, half):
    """Pairs (i, i + half) of one head at an address."""
    whole = half // 16 * 16
    for i in range(0, whole, 16):
        cos, sin = load_f32(table, 4 * i), load_f32(table, 4 * (half + i))
        a, b = load_f32(x, 4 * i), load_f32(x, 4 * (half + i))
        store(x, 4 * i, a * cos - b * sin)
        store(x, 4 * (half + i), fma(a, sin, b * cos))
    for i in range(whole, half):
        _rope_pair(x, 4 * i, 4 * (half + i), table, i, half)


@jit
def _rope_pair(x, first, second, table, i, half):
    cos, sin = load_one_f32(table, 4 * i), load_one_f32(table, 4 * (half + i))
    a, b = load_one_f32(x, first), load_one_f32(x, second)
    store(x, first, a * cos - b * sin)
    store(x, second, a * sin + b * cos)


@jit
def _rope_heads(x, n_heads, n, table, half, neox):
    """All heads (n_heads, n) of one token at an address."""
    for h in range(n_heads):
        if neox:
            _rope_neox(x + 4 * n * h, table, half)
        else:
            _rope_normal(x + 4 * n * h, table, half)


@kernel
def rope_kernel(
    share: Share,
    q: int,
    k: int,
    n_tokens: int,
    q_heads: int,
    k_heads: int,
    n: int,
    table: int,
    half: int,
    neox: int,
):
    """q, k (n_tokens, heads, n) in place; table (n_tokens, 2 half): cosines, then sines.

    q, k and table are addresses.
    """
    first, stop = bounds(share, n_tokens)
    for t in range(first, stop):
        angles = table + 8 * half * t
        _rope_heads(q + 4 * n * q_heads * t, q_heads, n, angles, half, neox)
        _rope_heads(k + 4 * n * k_heads * t, k_heads, n, angles, half, neox)
