"""Decode: the rows of a matrix by one to four vectors, from the file's bytes.

    y[t, r] = sum_k W[r, k] x[t, k]

Each row is decoded once for all vectors. Bytes read per call: those of the matrix.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.simd import F32, INTP, Tile, at, prefetch_l1, sum_lanes
from ..arguments import Matrix, Output, Quantised
from ..formats import FORMATS, KINDS
from ..sums import tile_of, vectors_of
from .blocks import (
    BLOCKS_AT_ONCE,
    PREFETCH_DISTANCE,
    add_to,
    low_type,
    make_blocks_on,
    pointers_on,
    rows_of_part,
)


@intrinsic(prefer_literal=True)
def no_row_sums(typingctx, kind, tokens):
    """Zeros: tiles of the dot products and of what offsets and minima add, a vector per token."""
    n, lanes = tokens.literal_value, low_type(FORMATS[kind.literal_value]).n
    both = types.Tuple((Tile("f32", n), Tile("f32", n, lanes=lanes)))

    def codegen(ctx, b, sig, vals):
        return ir.Constant(ctx.get_value_type(both), None)

    return both(kind, tokens), codegen


@intrinsic(prefer_literal=True)
def add_blocks(typingctx, kind, n, sums, w, x, n_blocks):
    """sums += n blocks at address w by those of each token, whose rows have n_blocks blocks."""
    f, at_once = FORMATS[kind.literal_value], n.literal_value

    def codegen(ctx, b, sig, vals):
        _, _, sums_before, w, x, n_blocks = vals
        tiles = [vectors_of(b, tile) for tile in cgutils.unpack_tuple(b, sums_before, 2)]
        before = list(zip(*tiles))
        far = [b.mul(n_blocks, ir.Constant(n_blocks.type, t)) for t in range(len(before))]
        places = [pointers_on(b, f, x, n) for n in far]
        after = add_to(b, f, at_once, before, at(b, w), places)
        return ctx.make_tuple(b, sums, [tile_of(b, vectors) for vectors in zip(*after)])

    return sums(kind, n, sums, INTP, x, INTP), codegen


@intrinsic
def store_totals(typingctx, sums, out):
    """Store the total of each token of `out` (`Output`) in its first column."""

    def codegen(ctx, b, sig, vals):
        dots, low = (vectors_of(b, tile) for tile in cgutils.unpack_tuple(b, vals[0], 2))
        data, row, n = cgutils.unpack_tuple(b, vals[1], 3)
        for t, parts in enumerate(zip(dots, low)):
            totals = [sum_lanes(b, part) for part in parts]
            with b.if_then(b.icmp_signed("<", ir.Constant(n.type, t), n)):
                place = b.add(data, b.mul(row, ir.Constant(row.type, t)))
                # Added before the branch, they cost four tokens of Q4_K 4%: LLVM spills more.
                b.store(b.fadd(*totals), b.inttoptr(place, F32.as_pointer()))
        return ctx.get_dummy_value()

    return types.void(sums, out), codegen


def by_rows(product: Any, vectors: type, at_once: int = 1) -> DefinedKernel:
    """The kernel that calls the jitted product(address, x, n, out) for each `at_once` rows.

    address: of the first of these rows; vectors: the declared type of x; out: their `Output`.
    """

    @kernel
    def rows_kernel(share: Share, w: Matrix, x: vectors, n: int, out: Output):  # type: ignore[valid-type]
        n_rows = rows_of_part(w, share.parts)
        first = take(share.ticket) * n_rows
        while first < w.n_rows:
            for r in range(first, min(first + n_rows, w.n_rows), at_once):
                to = Output(out.data + 4 * r, out.row_bytes, out.n_tokens)
                product(w.data + r * w.row_bytes, x, n, to)
            first = take(share.ticket) * n_rows

    return rows_kernel


def make_row(type_name: str, tokens: int) -> Any:
    """The jitted product of a row of one format by `tokens` tokens, for `by_rows`."""
    kind = KINDS[type_name]
    f = FORMATS[kind]
    size, at_once = f.n_bytes, BLOCKS_AT_ONCE if f.block == 32 else 1
    lines = max(64, at_once * size - 32)  # the hardware fetches the last part of a line
    blocks_on = make_blocks_on(f)

    @jit
    def _one_row(row, x, n_blocks, out):
        sums = no_row_sums(kind, tokens)
        for _ in range(n_blocks // at_once):
            for line in range(PREFETCH_DISTANCE, PREFETCH_DISTANCE + lines, 64):
                prefetch_l1(row, line)
            sums = add_blocks(kind, at_once, sums, row, x, n_blocks)
            row, x = row + at_once * size, blocks_on(x, at_once)
        for _ in range(n_blocks % at_once):
            sums = add_blocks(kind, 1, sums, row, x, n_blocks)
            row, x = row + size, blocks_on(x, 1)
        store_totals(sums, out)

    return _one_row


def make_rows(type_name: str, tokens: int) -> DefinedKernel:
    """The kernel of one format for up to `tokens` tokens; reads that many rows of activations."""
    return by_rows(make_row(type_name, tokens), Quantised)
