"""Kernel of rope: rotates pairs of elements of each head by angles from a table."""

from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from .. import simd as v
from ..cache import jit
from ..simd import fma, load_f32, load_one_f32, store


@intrinsic
def _swap_pairs(typingctx, x):
    """Lanes 1, 0, 3, 2, ..."""
    order = [lane ^ 1 for lane in range(16)]
    return x(x), lambda ctx, b, sig, vals: v.shuffle(b, vals[0], order)


@intrinsic
def _spread(typingctx, address, signed):
    """8 floats, each in two lanes; the even lanes negated where `signed` is 1."""

    def codegen(ctx, b, sig, vals):
        zero = ir.Constant(v.I64, 0)
        place = v.pointer(ctx, b, types.intp, vals[0], zero, v.f32x8.ir)
        x = b.load(place)
        x.align = 4
        x = v.shuffle(b, x, [lane // 2 for lane in range(16)])
        sign = b.select(
            b.icmp_signed("!=", vals[1], zero),
            ir.Constant(x.type, [-1.0, 1.0] * 8),
            v.const(x.type, 1.0),
        )
        return b.fmul(x, sign)

    return v.f32x16(types.intp, types.intp), codegen


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
def _rope_tokens(q, k, cos_sin, neox, first, last):
    """All heads of tokens first .. last-1."""
    half = cos_sin.shape[1] // 2
    for x in (q, k):
        _, n_heads, n = x.shape
        for t in range(first, last):
            table = cos_sin.ctypes.data + 8 * half * t
            for h in range(n_heads):
                row = x.ctypes.data + 4 * n * (t * n_heads + h)
                if neox:
                    _rope_neox(row, table, half)
                else:
                    _rope_normal(row, table, half)


@jit(parallel=True)
def rope_kernel(q, k, cos_sin, neox, threads):
    """q, k (T, heads, E) in place; cos_sin (T, n_rot): n_rot/2 cosines, then as many sines."""
    n_tokens = q.shape[0]
    if threads == 1:
        _rope_tokens(q, k, cos_sin, neox, 0, n_tokens)
    else:
        for part in prange(threads):
            first, last = n_tokens * part // threads, n_tokens * (part + 1) // threads
            _rope_tokens(q, k, cos_sin, neox, first, last)
