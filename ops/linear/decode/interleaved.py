"""Rows of 4- and 5-bit weights side by side, sixteen at a time: one row is one lane.

    y[t, r] = sum_k W[r, k] x[t, k]

The kernels of `rows` shuffle scales and add across lanes; here each lane has all the data of its
row. That halves the work per byte, so that memory is the limit for one to four tokens. Loading a
model rearranges the file's bytes. Sixteen rows of Q4_0, block by block
(`formats.pieces.SideBySide`):

    [16 rows] f16  scales | [16 rows][4 bytes]  codes 0-3 (low nibbles) and 16-19 (high ones)
                          | codes 4-7, 20-23 | codes 8-11, 24-27 | codes 12-15, 28-31

Floats are added in the order of `prefill.tiles`, so that a token has the same bits in a batch of
any size.
"""

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.simd import F32, INTP, at, const, prefetch, prefetch_l1, read, write
from ....jit.variant import FEATURES, VARIANT
from ...types import ROWS_SIDE_BY_SIDE as ROWS
from ..arguments import Matrix, Quantised
from ..formats import FORMATS, KINDS, formatted
from ..formats.columns import Interleaved, Transposed
from ..formats.pieces import SideBySide, gather
from ..prefill.tiles import scaled_sums
from ..prefill.units import unit_of_bytes
from ..sums import no_sums, store_rows, tile_of, vectors_of
from .blocks import PREFETCH_DISTANCE, make_blocks_on, pointers_on
from .rows import by_rows

# One token waits only for memory, and L1 has few outstanding requests: with those of L2, two cores
# of a Zen 4 read Q4_0 at 29.5 GB/s instead of 25.5, further ahead at 27. Four tokens, which compute
# meanwhile, are a quarter faster through L1, and so is one token with AVX2 (a Cascade Lake, which
# has no VPOPCNTDQ, was measured with L1 alone).
_NEWER = VARIANT == "avx512" and "avx512vpopcntdq" in FEATURES
_ONE_TOKEN = (prefetch, 1024) if _NEWER else (prefetch_l1, PREFETCH_DISTANCE)


@formatted()
def _interleave_block(b, f, w, row_bytes, out):
    """The same block of 16 rows, `row_bytes` apart, the first at w -> side by side at `out`."""
    starts = [b.add(w, b.mul(row_bytes, ir.Constant(row_bytes.type, r))) for r in range(ROWS)]
    rows, out = [at(b, start) for start in starts], at(b, out)
    columns = Transposed(0, rows, {})
    head = f.n_bytes % 4 or 4
    codes = head + (f.n_bytes - head) % 16  # before them, fifth bits
    write(b, gather(b, rows, ir.IntType(8 * head), 0), out)
    for k in range(head, codes, 4):
        write(b, columns.lone_word(b, k), out, ROWS * k)
    for k in range(codes, f.n_bytes, 16):
        for i in range(4):
            write(b, columns.word(b, k, i), out, ROWS * (k + 4 * i))


def make_interleave(type_name: str) -> DefinedKernel:
    """The kernel that interleaves rows of one type."""
    kind = KINDS[type_name]
    size = FORMATS[kind].n_bytes

    @kernel
    def interleave_kernel(share: Share, w: Matrix, out: int):
        """Interleave the rows, a multiple of 16, at address `out`; they take as many bytes."""
        first = take(share.ticket) * ROWS
        while first < w.n_rows:
            rows, to = w.data + first * w.row_bytes, out + first * w.row_bytes
            for i in range(w.row_bytes // size):
                _interleave_block(kind, rows + i * size, w.row_bytes, to + i * size * ROWS)
            first = take(share.ticket) * ROWS

    return interleave_kernel


@intrinsic(prefer_literal=True)
def add_block(typingctx, kind, sums, w, x, n_blocks):
    """sums += a block of 16 rows at address w by those of the tokens, whose rows have n_blocks."""
    f = FORMATS[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        _, before, w, x, n_blocks = vals
        blocks = [b.mul(n_blocks, ir.Constant(n_blocks.type, t)) for t in range(sums.n)]
        places = [pointers_on(b, f, x, far) for far in blocks]

        def codes(j):
            [four] = f.codes(b, Interleaved(j, w))
            return four

        w = at(b, w)
        whole = unit_of_bytes(b, f, codes, [q for q, _, _ in places])
        scale, low = f.floats(b, SideBySide(w, ROWS))
        acc = vectors_of(b, before)
        ds, ss = [read(b, d, F32) for _, d, _ in places], [read(b, s, F32) for _, _, s in places]
        if f.centre:
            ss = [b.fmul(st, const(F32, -f.centre)) for st in ss]
        return tile_of(b, scaled_sums(b, f, whole, scale, low, acc, ds, ss))

    return sums(kind, sums, INTP, x, INTP), codegen


def make_sixteen_rows(type_name: str, tokens: int) -> Any:
    """The jitted product of 16 rows of one format by `tokens` tokens, for `by_rows`."""
    kind = KINDS[type_name]
    size = FORMATS[kind].n_bytes * ROWS
    blocks_on = make_blocks_on(FORMATS[kind])
    fetch, distance = _ONE_TOKEN if tokens == 1 else (prefetch_l1, PREFETCH_DISTANCE)

    @jit
    def _sixteen_rows(block, x, n_blocks, out):
        sums = no_sums(tokens)
        for _ in range(n_blocks):
            for line in range(distance, distance + size, 64):
                fetch(block, line)
            sums = add_block(kind, sums, block, x, n_blocks)
            block, x = block + size, blocks_on(x, 1)
        store_rows(tokens, sums, out)

    return _sixteen_rows


def make_interleaved(type_name: str, tokens: int) -> DefinedKernel:
    """The kernel for up to `tokens` tokens; reads that many rows of activations."""
    return by_rows(make_sixteen_rows(type_name, tokens), Quantised, ROWS)
