"""Rows of a matrix as floats: what a token id stands for.

    out[t] = W[ids[t]],   w = d * q + low   or   (d * scale) * q + low * minimum

Every product of a format's small numbers is exact in float32, so that one rounding is left: finite
weights come out with the bits of `reference.quants`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit.launch import Kernel
from ...jit.launch.legacy_define import step
from ...jit.simd import F32, I8, I32, INTP, call, load_u32, shuffle, splat, store, vty
from .floats import FLOAT_TYPES, load_float
from .formats import FORMATS, KINDS
from .formats.pieces import at

_VEC = vty(F32, 16)


def _factors(b, f, w):
    """For each 16 weights of a block: the factor of the codes and what is added to the product."""
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


@intrinsic(prefer_literal=True)
def _put_block(typingctx, kind, w, out):
    """The weights of the block at address w as float32 at `out`."""
    f = FORMATS[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        w, out = (b.inttoptr(v, I8.as_pointer()) for v in vals[1:])
        factors = _factors(b, f, w)
        for i, codes in enumerate(f.codes(b, w)):
            for half in (0, 1):
                q = shuffle(b, codes, range(16 * half, 16 * half + 16))
                q = (b.sext if f.signed else b.zext)(q, vty(I32, 16))
                factor, low = factors[2 * i + half]
                added = ir.Constant(_VEC, None) if low is None else splat(b, low, 16)
                x = b.sitofp(q, _VEC), splat(b, factor, 16), added
                place = b.bitcast(at(b, out, 128 * i + 64 * half), _VEC.as_pointer())
                b.store(call(b, "llvm.fma.v16f32", _VEC, *x), place).align = 1
        return ctx.get_dummy_value()

    return types.void(kind, INTP, INTP), codegen


def block_rows(type_name: str) -> Kernel:
    """Address of W and bytes from row to row; address of the ids, uint32[T]; T; blocks per row;
    address of float32[T, K]."""
    kind = KINDS[type_name]
    f = FORMATS[kind]
    n_bytes, n_out = f.n_bytes, 4 * f.block

    @step("iiiiii")
    def _rows_kernel(part, parts, ticket, w, stride, ids, n_ids, n_blocks, out):
        for t in range(n_ids * part // parts, n_ids * (part + 1) // parts):
            row, to = w + stride * np.int64(load_u32(ids, 4 * t)), out + n_out * n_blocks * t
            for i in range(n_blocks):
                _put_block(kind, row + n_bytes * i, to + n_out * i)

    return _rows_kernel


def float_rows(type_name: str) -> Kernel:
    """As `block_rows`, with columns in place of blocks."""
    size = FLOAT_TYPES[type_name][0]

    @step("iiiiii")
    def _float_rows_kernel(part, parts, ticket, w, stride, ids, n_ids, n_cols, out):
        for t in range(n_ids * part // parts, n_ids * (part + 1) // parts):
            row, to = w + stride * np.int64(load_u32(ids, 4 * t)), out + 4 * n_cols * t
            for k in range(n_cols):
                store(to, 4 * k, load_float(type_name, row + size * k))

    return _float_rows_kernel
