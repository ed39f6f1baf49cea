"""Matrices of plain floats: F32, F16 and BF16 rows by float32 activations, any number of columns.

    y[t, r] = sum_k W[r, k] x[t, k], every product and sum in float32

T = 1 reads the rows as in the file, two vectors of 16 per step. T > 1 converts a run of columns of
16 rows to float32 with one row per lane, and multiplies them by six tokens at a time: twelve sums,
two vectors of weights and one broadcast activation fit AVX2's sixteen registers.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.simd import (
    F32,
    I32,
    INTP,
    at,
    fma,
    fmuladd,
    hsum,
    load_f32,
    load_one_f32,
    prefetch_l1,
    read,
    set_f32,
    splat,
    store,
    vty,
    write,
)
from ..types import QUANT_TYPES
from .arguments import Buffers, FloatMatmulTraits, Matrix, Output
from .decode.blocks import PREFETCH_DISTANCE
from .decode.rows import by_rows
from .formats.columns import transposed
from .formats.floats import FLOAT_TYPES, as_f32, load_16, load_float
from .sums import load_sums, store_sums, tile_of, vectors_of

RUN = 512  # columns per run: 16 rows of them are 32 KiB


def make_float_row(type_name: str) -> Any:
    """The jitted product of a row of one type by one token, for `by_rows`."""
    size = QUANT_TYPES[type_name].n_bytes

    @jit
    def _one_row(row, x, n_cols, out):
        whole, pairs = n_cols // 16 * 16, n_cols // 32 * 32
        even, odd = set_f32(0.0), set_f32(0.0)
        for k in range(0, pairs, 32):
            for line in range(PREFETCH_DISTANCE, PREFETCH_DISTANCE + 32 * size, 64):
                prefetch_l1(row + k * size, line)
            even = fma(load_16(type_name, row + k * size), load_f32(x, k * 4), even)
            odd = fma(load_16(type_name, row + (k + 16) * size), load_f32(x, k * 4 + 64), odd)
        for k in range(pairs, whole, 16):
            even = fma(load_16(type_name, row + k * size), load_f32(x, k * 4), even)
        total = hsum(even + odd)
        for k in range(whole, n_cols):
            total += load_float(type_name, row + k * size) * load_one_f32(x, k * 4)
        store(out.data, 0, total)

    return _one_row


def make_float_matvec(type_name: str) -> DefinedKernel:
    """The kernel `y = W x` of one type; x: address of float32[K], n: K."""
    return by_rows(make_float_row(type_name), int)


@intrinsic(prefer_literal=True)
def _eight_columns(typingctx, element, address, row_bytes, out):
    """16 rows x 8 columns at an address -> float32[8][16] at `out`."""
    llty = vty(FLOAT_TYPES[element.literal_value], 8)

    def codegen(ctx, b, sig, vals):
        _, base, row_bytes, out = vals
        rows = []
        for r in range(16):
            place = b.add(base, b.mul(row_bytes, ir.Constant(row_bytes.type, r)))
            x = as_f32(b, read(b, at(b, place), llty))
            rows.append(b.bitcast(x, vty(I32, 8)))
        for k, column in enumerate(transposed(b, rows)):
            write(b, column, at(b, out), 64 * k)
        return ctx.get_dummy_value()

    return types.void(element, INTP, INTP, INTP), codegen


@intrinsic
def _fma_column(typingctx, sums, weights, x, stride):
    """sums[t] += 16 rows' weights * the activation of token t; addresses, bytes between tokens."""

    def codegen(ctx, b, sig, vals):
        before, w, x, stride = vals
        w, after = read(b, at(b, w), vty(F32, 16)), []
        for t, total in enumerate(vectors_of(b, before)):
            place = b.add(x, b.mul(stride, ir.Constant(stride.type, t)))
            xt = splat(b, read(b, at(b, place), F32), 16)
            after.append(fmuladd(b, w, xt, total))
        return tile_of(b, after)

    return sums(sums, INTP, INTP, INTP), codegen


def _tile(tokens: int) -> Any:
    """The jitted product of one register tile: 16 rows by `tokens` tokens."""

    @jit
    def _multiply(weights, run, x, stride, place):
        sums = load_sums(tokens, place)
        for k in range(run):
            sums = _fma_column(sums, weights + k * 64, x + k * 4, stride)
        store_sums(place, sums)

    return _multiply


_six, _four, _two, _one = (_tile(tokens) for tokens in (6, 4, 2, 1))


@jit
def _multiply_run(weights, run, x, n_tokens, stride, sums):
    """sums[t] += x[t] times a run of columns of 16 rows; x: address of these columns of token 0."""
    while n_tokens >= 6:
        _six(weights, run, x, stride, sums)
        n_tokens, x, sums = n_tokens - 6, x + 6 * stride, sums + 6 * 64
    if n_tokens >= 4:
        _four(weights, run, x, stride, sums)
        n_tokens, x, sums = n_tokens - 4, x + 4 * stride, sums + 4 * 64
    if n_tokens >= 2:
        _two(weights, run, x, stride, sums)
        n_tokens, x, sums = n_tokens - 2, x + 2 * stride, sums + 2 * 64
    if n_tokens == 1:
        _one(weights, run, x, stride, sums)


FLOAT_TRAITS = FloatMatmulTraits(run_bytes=RUN * 64, token_bytes=64)


def make_float_panel(type_name: str) -> Any:
    """The jitted product of up to 16 rows of one type by any number of tokens."""
    size = QUANT_TYPES[type_name].n_bytes

    @jit
    def _unpack_run(w, start, run, weights):
        base, row_bytes, rows = w.data + start * size, w.row_bytes, w.n_rows
        eights = run // 8 * 8 if rows == 16 else 0
        for k in range(0, eights, 8):
            _eight_columns(type_name, base + k * size, row_bytes, weights + k * 64)
        for k in range(eights, run):
            for r in range(16):
                place = base + min(r, rows - 1) * row_bytes + k * size
                store(weights, (k * 16 + r) * 4, load_float(type_name, place))

    @jit
    def _one_panel(w, x, n_cols, out, weights):
        """Up to 16 rows by all tokens; weights: address of the thread's buffer."""
        sums = weights + RUN * 64
        for t in range(out.n_tokens):
            store(sums, t * 64, set_f32(0.0))
        for start in range(0, n_cols, RUN):
            run = min(RUN, n_cols - start)
            _unpack_run(w, start, run, weights)
            _multiply_run(weights, run, x + start * 4, out.n_tokens, n_cols * 4, sums)
        for t in range(out.n_tokens):
            for r in range(w.n_rows):
                total = load_one_f32(sums, (t * 16 + r) * 4)
                store(out.data, t * out.row_bytes + 4 * r, total)

    return _one_panel


def make_float_matmul(type_name: str) -> DefinedKernel:
    """The kernel `Y = X W^T` of one type; its traits are `FloatMatmulTraits`."""
    _one_panel = make_float_panel(type_name)

    @kernel(traits=FLOAT_TRAITS)
    def float_matmul_kernel(
        share: Share, w: Matrix, x: int, n_cols: int, out: Output, scratch: Buffers
    ):
        """x: address of float32[T, K]; n_cols: K."""
        weights = scratch.data + share.part * scratch.n_bytes
        first = take(share.ticket) * 16
        while first < w.n_rows:
            rows = Matrix(w.data + first * w.row_bytes, w.row_bytes, min(16, w.n_rows - first))
            to = Output(out.data + 4 * first, out.row_bytes, out.n_tokens)
            _one_panel(rows, x, n_cols, to, weights)
            first = take(share.ticket) * 16

    return float_matmul_kernel
