"""Rows of a matrix as floats: what a token id stands for.

    out[t] = W[ids[t]],   w = d * q + low   or   (d * scale) * q + low * minimum

Every product of a format's small numbers is exact in float32, so that one rounding is left: finite
weights come out with the bits of `reference.quants`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..errors import OpsError
from ..simd import F32, I8, I32, INTP, call, load_u32, shuffle, splat, store, vty
from ..steps import Step, step
from .floats import FLOAT_TYPES, load_float
from .formats import FORMATS, KINDS
from .formats.pieces import at
from .weight import Weight

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


@cache
def _block_kernel(kind: int) -> Step:
    f = FORMATS[kind]
    n_bytes, n_out = f.n_bytes, 4 * f.block

    @step("iiiiii")
    def _rows_kernel(part, parts, ticket, w, stride, ids, n_ids, n_blocks, out):
        for t in range(n_ids * part // parts, n_ids * (part + 1) // parts):
            row, to = w + stride * np.int64(load_u32(ids, 4 * t)), out + n_out * n_blocks * t
            for i in range(n_blocks):
                _put_block(kind, row + n_bytes * i, to + n_out * i)

    return _rows_kernel


@cache
def _float_kernel(type_name: str) -> Step:
    size = FLOAT_TYPES[type_name][0]

    @step("iiiiii")
    def _float_rows_kernel(part, parts, ticket, w, stride, ids, n_ids, n_cols, out):
        for t in range(n_ids * part // parts, n_ids * (part + 1) // parts):
            row, to = w + stride * np.int64(load_u32(ids, 4 * t)), out + 4 * n_cols * t
            for k in range(n_cols):
                store(to, 4 * k, load_float(type_name, row + size * k))

    return _float_rows_kernel


def get_rows(weight: Weight, ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Rows of the matrix as floats, as exact as the file: out[t] = W[ids[t]].

    ids int32[T], out float32[T, K], contiguous both. Raises OpsError for ids outside the matrix and
    for other shapes and types. While steps are recorded, the ids that `ids` will hold when they run
    are not known: whoever changes them checks them.
    """
    for what, x, dtype, shape in (
        ("out", out, np.float32, (len(ids), weight.n_cols)),
        ("ids", ids, np.int32, (len(ids),)),
    ):
        if x.shape != shape or x.dtype != dtype or not x.flags.c_contiguous:
            raise OpsError(
                f"reading rows of {weight.name}: found {what} {x.dtype} {x.shape}, expected"
                f" contiguous {np.dtype(dtype)} {shape}"
            )
    wrong = (ids < 0) | (ids >= weight.n_rows)
    if wrong.any():
        raise OpsError(
            f"reading rows of {weight.name}: found row {int(ids[wrong][0])}, expected 0 to"
            f" {weight.n_rows - 1}"
        )
    kind = KINDS.get(weight.stored_type.name)
    if kind is None:
        kernel, n = _float_kernel(weight.stored_type.name), weight.n_cols
    else:
        kernel, n = _block_kernel(kind), weight.n_cols // FORMATS[kind].block
    kernel(
        weight.address, weight.data.shape[1], ids.ctypes.data, len(ids), n, out.ctypes.data,
        parallel=len(ids) > 1,
    )  # fmt: skip
