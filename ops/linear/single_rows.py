"""Kernels that read rows of a matrix as floats.

    out[t] = W[ids[t]],   w = d * q + low   or   (d * scale) * q + low * minimum

Products of a format's small numbers are exact in float32, so that there is one rounding, and finite
weights have the bits of `reference.quants`.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import F32, I32, at, call, load_u32, shuffle, splat, store, vty, write
from ..types import QUANT_TYPES
from .arguments import Matrix
from .formats import KINDS, formatted
from .formats.floats import FLOAT_TYPES, load_float

_VEC = vty(F32, 16)


def _factors(b, f, w):
    """For each 16 weights of a block: the factor of the codes and the addend of the product."""
    d, low = (x and b.extract_element(x, ir.Constant(I32, 0)) for x in f.d_and_low(b, [w]))
    if not f.scales:
        return [(d, low)] * 2
    scales, minima = f.scales(b, w)

    def times(factor, numbers, lane):
        if factor is None or numbers is None:
            return None
        number = b.extract_element(numbers, ir.Constant(I32, lane))
        return b.fmul(factor, b.sitofp(number, F32))

    return [(times(d, scales, i), times(low, minima, i)) for i in range(16)]


@formatted()
def _put_block(b, f, w, out):
    """The weights of the block at address w as float32 at `out`."""
    w, out = at(b, w), at(b, out)
    factors = _factors(b, f, w)
    for i, codes in enumerate(f.codes(b, w)):
        for half in (0, 1):
            q = shuffle(b, codes, range(16 * half, 16 * half + 16))
            q = (b.sext if f.signed else b.zext)(q, vty(I32, 16))
            factor, low = factors[2 * i + half]
            added = ir.Constant(_VEC, None) if low is None else splat(b, low, 16)
            x = b.sitofp(q, _VEC), splat(b, factor, 16), added
            write(b, call(b, "llvm.fma.v16f32", _VEC, *x), out, 128 * i + 64 * half)


def _make_put(type_name: str) -> Any:
    """The jitted function that writes the block at one address as float32 to another."""
    if type_name in FLOAT_TYPES:

        @jit
        def _put_float(w, out):
            store(out, 0, load_float(type_name, w))

        return _put_float
    kind = KINDS[type_name]

    @jit
    def _put(w, out):
        _put_block(kind, w, out)

    return _put


def make_get_rows(type_name: str) -> DefinedKernel:
    """The kernel that reads rows of one type."""
    put, n_bytes = _make_put(type_name), QUANT_TYPES[type_name].n_bytes
    n_out = 4 * QUANT_TYPES[type_name].block

    @kernel
    def get_rows_kernel(share: Share, w: Matrix, ids: int, n_ids: int, n_blocks: int, out: int):
        """Rows of n_blocks blocks to out float32[T, K]. ids: address of uint32[T]; n_ids: T."""
        first, stop = bounds(share, n_ids)
        for t in range(first, stop):
            row = w.data + w.row_bytes * np.int64(load_u32(ids, 4 * t))
            to = out + n_out * n_blocks * t
            for i in range(n_blocks):
                put(row + n_bytes * i, to + n_out * i)

    return get_rows_kernel
