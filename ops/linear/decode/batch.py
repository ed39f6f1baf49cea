"""Small batches: a quantised matrix by a few vectors, each row decoded once for four of them.

    y[t, r] = sum_k W[r, k] x[t, k]

The arithmetic is that of one token (`rows`), and so are the bits: verifying a draft gives the
numbers that decoding it token by token gives. Bytes read per call: those of the matrix.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.simd import F32, INTP, Tile, at, prefetch_l1, sum_lanes
from ..arguments import Matrix, Output, Quantised
from ..formats import FORMATS, KINDS
from . import MAX_TOKENS
from .rows import (
    BLOCKS_AT_ONCE,
    PREFETCH_DISTANCE,
    ROWS_AT_ONCE,
    add_to,
    low_type,
    make_blocks_on,
    pointers_on,
)


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
def _add_blocks(typingctx, kind, n, sums, w, x, n_blocks):
    """sums += n blocks at address w by those of each token, whose rows have n_blocks blocks."""
    f, at_once, (dots, low) = FORMATS[kind.literal_value], n.literal_value, sums.types
    tokens = range(dots.n)

    def codegen(ctx, b, sig, vals):
        _, _, sums, w, x, n_blocks = vals
        before = [b.extract_value(sums, i) for i in (0, 1)]
        of_tokens = [tuple(b.extract_value(tile, t) for tile in before) for t in tokens]
        blocks = [b.mul(n_blocks, ir.Constant(n_blocks.type, t)) for t in tokens]
        places = [pointers_on(b, f, x, far) for far in blocks]
        out = before
        for t, added in enumerate(add_to(b, f, at_once, of_tokens, at(b, w), places)):
            out = [b.insert_value(tile, v, t) for tile, v in zip(out, added)]
        return ctx.make_tuple(b, types.Tuple((dots, low)), out)

    return sums(kind, n, sums, INTP, x, INTP), codegen


@intrinsic
def _store_sums(typingctx, sums, out):
    """Store the total of each token in the first column of `out`."""
    dots, _ = sums.types

    def codegen(ctx, b, sig, vals):
        both, out = vals
        data, row, n = (b.extract_value(out, i) for i in range(3))
        for t in range(dots.n):
            parts = [sum_lanes(b, b.extract_value(b.extract_value(both, i), t)) for i in (0, 1)]
            with b.if_then(b.icmp_signed("<", ir.Constant(n.type, t), n)):
                place = b.add(data, b.mul(row, ir.Constant(row.type, t)))
                b.store(b.fadd(*parts), b.inttoptr(place, F32.as_pointer()))
        return ctx.get_dummy_value()

    return types.void(sums, out), codegen


def _make_one_row(kind: int, tokens: int) -> Any:
    """The jitted product of one row with so many tokens; writes those that `out` has."""
    f = FORMATS[kind]
    size, at_once = f.n_bytes, BLOCKS_AT_ONCE if f.block == 32 else 1
    lines = max(64, at_once * size - 32)
    blocks_on = make_blocks_on(f)

    @jit
    def _one_row(row, x, n_blocks, out):
        sums = _zeros(kind, tokens)
        for _ in range(n_blocks // at_once):
            for line in range(PREFETCH_DISTANCE, PREFETCH_DISTANCE + lines, 64):
                prefetch_l1(row, line)
            sums = _add_blocks(kind, at_once, sums, row, x, n_blocks)
            row, x = row + at_once * size, blocks_on(x, at_once)
        for _ in range(n_blocks % at_once):
            sums = _add_blocks(kind, 1, sums, row, x, n_blocks)
            row, x = row + size, blocks_on(x, 1)
        _store_sums(sums, out)

    return _one_row


def make_batch(type_name: str) -> DefinedKernel:
    """The kernel `Y = X W^T` of one format for a few tokens."""
    kind = KINDS[type_name]
    blocks_on = make_blocks_on(FORMATS[kind])
    _four, _two = (_make_one_row(kind, tokens) for tokens in (MAX_TOKENS, 2))

    @kernel
    def batch_kernel(share: Share, w: Matrix, x: Quantised, n_blocks: int, out: Output):
        """Rows of n_blocks blocks by each token.

        Reads activations of up to MAX_TOKENS - 1 rows after the last.
        """
        first = take(share.ticket) * ROWS_AT_ONCE
        while first < w.n_rows:
            for r in range(first, min(first + ROWS_AT_ONCE, w.n_rows)):
                row = w.data + r * w.row_bytes
                for t in range(0, out.n_tokens, MAX_TOKENS):
                    n = out.n_tokens - t
                    to = Output(out.data + t * out.row_bytes + 4 * r, out.row_bytes, n)
                    if n > 2:
                        _four(row, blocks_on(x, t * n_blocks), n_blocks, to)
                    else:
                        _two(row, blocks_on(x, t * n_blocks), n_blocks, to)
            first = take(share.ticket) * ROWS_AT_ONCE

    return batch_kernel
