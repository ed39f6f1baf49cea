"""Small batches: a quantised matrix by a few vectors, each row decoded once for four of them.

    y[t, r] = sum_k W[r, k] x[t, k]

The steps are those of one token (`rows`), and so are the bits: a draft that is verified gives the
numbers that decoding it token by token gives. Bytes read per call: those of the matrix.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit.cached import jit
from ....jit.launch import Kernel
from ....jit.launch.atomics import take
from ....jit.launch.legacy_define import step
from ....jit.simd import F32, I8, INTP, Tile, prefetch_l1, sum_lanes
from ..formats import FORMATS, KINDS
from . import MOST
from .rows import AHEAD, PART, STEP, add_to, low_type


def _tiles(f, tokens):
    """Sums of so many tokens: the dots, and what offsets and minima add."""
    return Tile("f32", tokens), Tile("f32", tokens, lanes=low_type(f).n)


@intrinsic(prefer_literal=True)
def _zeros(typingctx, kind, tokens):
    both = types.Tuple(_tiles(FORMATS[kind.literal_value], tokens.literal_value))

    def codegen(ctx, b, sig, vals):
        return ir.Constant(ctx.get_value_type(both), None)

    return both(kind, tokens), codegen


@intrinsic(prefer_literal=True)
def _add_blocks(typingctx, kind, n, sums, w, x, x_row, d, d_row, s, s_row):
    """sums += n blocks at address w by those of each token; x, d, s and bytes between tokens."""
    f, n_blocks, (dots, low) = FORMATS[kind.literal_value], n.literal_value, sums.types

    def codegen(ctx, b, sig, vals):
        before = [b.extract_value(vals[2], i) for i in (0, 1)]
        sums = [tuple(b.extract_value(v, t) for v in before) for t in range(dots.n)]

        def pointer(base, row, t):
            place = b.add(base, b.mul(row, ir.Constant(row.type, t)))
            return b.inttoptr(place, I8.as_pointer())

        tokens = [
            [pointer(base, row, t) for base, row in zip(vals[4::2], vals[5::2])]
            for t in range(dots.n)
        ]
        out = before
        for t, added in enumerate(
            add_to(b, f, n_blocks, sums, b.inttoptr(vals[3], I8.as_pointer()), tokens)
        ):
            out = [b.insert_value(tile, v, t) for tile, v in zip(out, added)]
        return ctx.make_tuple(b, types.Tuple((dots, low)), out)

    return sums(kind, n, sums, *[INTP] * 7), codegen


@intrinsic
def _store_sums(typingctx, sums, out, row, n):
    """The totals of the first n tokens to addresses out, out + row, ..."""
    dots, _ = sums.types

    def codegen(ctx, b, sig, vals):
        both, out, row, n = vals
        for t in range(dots.n):
            parts = [sum_lanes(b, b.extract_value(b.extract_value(both, i), t)) for i in (0, 1)]
            with b.if_then(b.icmp_signed("<", ir.Constant(n.type, t), n)):
                place = b.add(out, b.mul(row, ir.Constant(row.type, t)))
                b.store(b.fadd(*parts), b.inttoptr(place, F32.as_pointer()))
        return ctx.get_dummy_value()

    return types.void(sums, INTP, INTP, INTP), codegen


def _rows_of(kind: int, tokens: int) -> Any:
    """The jitted product of one row with so many tokens, of which the first n count."""
    f = FORMATS[kind]
    size, block = f.n_bytes, f.block
    n_at_once = STEP if block == 32 else 1
    s_bytes = 4 if block == 32 else 32
    lines = max(64, n_at_once * size - 32)

    @jit
    def _one_row(row, x, d, s, n_blocks, out, out_row, n):
        x_row, d_row, s_row = n_blocks * block, n_blocks * 4, n_blocks * s_bytes
        sums = _zeros(kind, tokens)
        for _ in range(n_blocks // n_at_once):
            for line in range(AHEAD, AHEAD + lines, 64):
                prefetch_l1(row, line)
            sums = _add_blocks(kind, n_at_once, sums, row, x, x_row, d, d_row, s, s_row)
            row, x = row + n_at_once * size, x + n_at_once * block
            d, s = d + n_at_once * 4, s + n_at_once * s_bytes
        for _ in range(n_blocks % n_at_once):
            sums = _add_blocks(kind, 1, sums, row, x, x_row, d, d_row, s, s_row)
            row, x, d, s = row + size, x + block, d + 4, s + s_bytes
        _store_sums(sums, out, out_row, n)

    return _one_row


def batch_kernel(type_name: str) -> Kernel:
    """`Y = X W^T` of one format for a few tokens.

    Arguments: address, row stride in bytes and rows of W; addresses of the activations, their
    scales and their sums; blocks per row; address of y, float32[T, N]; T. Reads activations of up
    to MOST - 1 rows after the last.
    """
    kind = KINDS[type_name]
    block, s_bytes = FORMATS[kind].block, 4 if FORMATS[kind].block == 32 else 32
    _four, _two = (_rows_of(kind, tokens) for tokens in (MOST, 2))

    @step("iiiiiiiii")
    def _batch_kernel(part, parts, ticket, w, stride, n_rows, x, d, s, n_blocks, out, n_tokens):
        x_row, d_row, s_row = n_blocks * block, n_blocks * 4, n_blocks * s_bytes
        first = take(ticket) * PART
        while first < n_rows:
            for r in range(first, min(first + PART, n_rows)):
                row = w + r * stride
                for t in range(0, n_tokens, MOST):
                    xt, dt, st = x + t * x_row, d + t * d_row, s + t * s_row
                    to, n = out + (t * n_rows + r) * 4, n_tokens - t
                    if n > 2:
                        _four(row, xt, dt, st, n_blocks, to, n_rows * 4, n)
                    else:
                        _two(row, xt, dt, st, n_blocks, to, n_rows * 4, n)
            first = take(ticket) * PART

    return _batch_kernel
