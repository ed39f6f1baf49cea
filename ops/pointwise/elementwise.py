"""Kernels of one element each: swiglu, geglu, add, scale, softcap."""

import math

from numba import prange

from ..cache import jit
from ..simd import fma, load_f32, set_f32, store, vexp
from .tails import load_tail, store_tail
from .tanh import vtanh

SWIGLU, GEGLU, ADD, SCALE, SOFTCAP = range(5)

_GELU = 2 * math.sqrt(2 / math.pi)
_CUBE = _GELU * 0.044715


@jit
def _silu(x):
    """x / (1 + exp(-x))."""
    one = set_f32(1.0)
    return x / (one + vexp(set_f32(0.0) - x))


@jit
def _gelu(x):
    """0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) for u = sqrt(2/pi) (x + 0.044715 x^3)."""
    one = set_f32(1.0)
    u2 = fma(x * x * x, set_f32(_CUBE), x * set_f32(_GELU))
    return x / (one + vexp(set_f32(0.0) - u2))


@jit
def _apply(op, x, y, c):
    if op == SWIGLU:
        return _silu(x) * y
    if op == GEGLU:
        return _gelu(x) * y
    if op == ADD:
        return x + y
    if op == SCALE:
        return x * set_f32(c)
    return vtanh(x * set_f32(1.0 / c)) * set_f32(c)


@jit
def _apply_range(op, a, b, c, out, first, last):
    """Elements first .. last-1 of arrays at three addresses."""
    whole = first + (last - first) // 16 * 16
    for i in range(first, whole, 16):
        store(out, 4 * i, _apply(op, load_f32(a, 4 * i), load_f32(b, 4 * i), c))
    if whole < last:
        rest = last - whole
        z = _apply(op, load_tail(a, 4 * whole, rest), load_tail(b, 4 * whole, rest), c)
        store_tail(out, 4 * whole, rest, z)


@jit(parallel=True)
def elementwise_kernel(op, x, y, c, out, threads):
    """out = op(x, y, c) for equally shaped arrays. Reads 4 or 8 bytes an element, writes 4."""
    n = x.size
    a, b, o = x.ctypes.data, y.ctypes.data, out.ctypes.data
    if threads == 1:
        _apply_range(op, a, b, c, o, 0, n)
    else:
        vectors = (n + 15) // 16
        for part in prange(threads):
            first, last = vectors * part // threads, vectors * (part + 1) // threads
            _apply_range(op, a, b, c, o, 16 * first, min(16 * last, n))
