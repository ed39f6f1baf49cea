"""Rows of 4- and 5-bit weights side by side, sixteen at a time: one row is one lane.

    y[t, r] = sum_k W[r, k] x[t, k]

The kernel of single rows (`rows`) shuffles scales and adds up across lanes; here a row's lane has
all that it needs. That is half the work per byte, which leaves one to four tokens to the memory's
speed. The bytes are the file's, laid out anew when a model is loaded. Sixteen rows of Q4_0, block
by block (`formats.SideBySide`):

    [16 rows] f16  scales | [16 rows][4 bytes]  codes 0-3 (low nibbles) and 16-19 (high ones)
                          | codes 4-7, 20-23 | codes 8-11, 24-27 | codes 12-15, 28-31

Floats are added as the kernel of many tokens (`prefill.tiles`) adds them: a token's results have
the same bits in a batch of any size.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit.launch import Kernel
from ....jit.launch.atomics import take
from ....jit.launch.legacy_define import step
from ....jit.simd import F32, INTP, Tile, const, prefetch_l1
from ..formats import FORMATS, KINDS
from ..formats.columns import ROWS, Interleaved, Transposed, pointer, write
from ..formats.pieces import SideBySide, gather, read
from ..prefill.tiles import scaled_sums
from ..prefill.units import unit_of_bytes
from .rows import AHEAD

PANELS = 2  # of 16 rows, that a thread takes at a time


@intrinsic(prefer_literal=True)
def _interleave(typingctx, kind, w, stride, out):
    """The same block of 16 rows, `stride` bytes apart, the first at w -> side by side at `out`."""
    f = FORMATS[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        _, w, stride, out = vals
        starts = [b.add(w, b.mul(stride, ir.Constant(stride.type, r))) for r in range(ROWS)]
        rows, out = [pointer(b, start) for start in starts], pointer(b, out)
        columns = Transposed(0, rows, {})
        head = f.n_bytes % 4 or 4
        codes = head + (f.n_bytes - head) % 16  # before them, fifth bits
        write(b, gather(b, rows, ir.IntType(8 * head), 0), out)
        for k in range(head, codes, 4):
            write(b, columns.lone_word(b, k), out, ROWS * k)
        for k in range(codes, f.n_bytes, 16):
            for i in range(4):
                write(b, columns.word(b, k, i), out, ROWS * (k + 4 * i))
        return ctx.get_dummy_value()

    return types.void(kind, INTP, INTP, INTP), codegen


def interleave_kernel(type_name: str) -> Kernel:
    """Lays rows out anew: address of the rows and bytes of one; their number, a multiple of 16;
    address of as many bytes."""
    kind = KINDS[type_name]
    size = FORMATS[kind].n_bytes

    @step("iiii")
    def _interleave_kernel(part, parts, ticket, w, stride, n_rows, out):
        first = take(ticket) * ROWS
        while first < n_rows:
            for i in range(stride // size):
                _interleave(
                    kind, w + first * stride + i * size, stride,
                    out + first * stride + i * size * ROWS,
                )  # fmt: skip
            first = take(ticket) * ROWS

    return _interleave_kernel


@intrinsic(prefer_literal=True)
def no_sums(typingctx, tokens):
    ty = Tile("f32", tokens.literal_value)
    return ty(tokens), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(ty), None)


@intrinsic(prefer_literal=True)
def add_block(typingctx, kind, sums, w, x, x_row, d, s, d_row):
    """sums += a block of 16 rows at w by those of the tokens: addresses, and bytes between tokens.

    The scales and the sums of activations, float32 both, are equally far apart.
    """
    f = FORMATS[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        _, before, w, x, x_row, d, s, d_row = vals

        def tokens(base, row):
            for t in range(sums.n):
                yield pointer(b, b.add(base, b.mul(row, ir.Constant(row.type, t))))

        def codes(j):
            [four] = f.codes(b, Interleaved(j, w))
            return four

        w = pointer(b, w)
        whole = unit_of_bytes(b, f, codes, list(tokens(x, x_row)))
        scale, low = f.floats(b, SideBySide(w, ROWS))
        acc = [b.extract_value(before, t) for t in range(sums.n)]
        ds, ss = ([read(b, p, F32) for p in tokens(base, d_row)] for base in (d, s))
        if f.centre:
            ss = [b.fmul(st, const(F32, -f.centre)) for st in ss]
        out = before
        for t, new in enumerate(scaled_sums(b, f, whole, scale, low, acc, ds, ss)):
            out = b.insert_value(out, new, t)
        return out

    return sums(kind, sums, *[INTP] * 6), codegen


@intrinsic
def store_sums(typingctx, sums, out, out_row, n):
    """16 results of each of the first n tokens to `out`, rows of tokens `out_row` bytes apart."""

    def codegen(ctx, b, sig, vals):
        tile, out, out_row, n = vals
        for t in range(sums.n):
            number = ir.Constant(n.type, t)
            with b.if_then(b.icmp_signed("<", number, n)):
                place = pointer(b, b.add(out, b.mul(out_row, number)))
                write(b, b.extract_value(tile, t), place)
        return ctx.get_dummy_value()

    return types.void(sums, INTP, INTP, INTP), codegen


def interleaved_kernel(type_name: str, tokens: int) -> Kernel:
    """`Y = X W^T` of interleaved rows, for so many tokens at a time.

    Arguments: address, bytes of a row and number of rows of W; addresses of the activations, their
    scales and their sums; blocks per row; address of y, float32[T, N]; T. Reads activations of up
    to tokens - 1 rows after the last.
    """
    kind = KINDS[type_name]
    size = FORMATS[kind].n_bytes * ROWS

    @step("iiiiiiiii")
    def _interleaved_kernel(
        part, parts, ticket, w, stride, n_rows, x, d, s, n_blocks, out, n_tokens
    ):
        x_row, d_row = n_blocks * 32, n_blocks * 4
        first = take(ticket) * (PANELS * ROWS)
        while first < n_rows:
            for r in range(first, min(first + PANELS * ROWS, n_rows), ROWS):
                for t in range(0, n_tokens, tokens):
                    panel, xt, dt, st = w + r * stride, x + t * x_row, d + t * d_row, s + t * d_row
                    sums = no_sums(tokens)
                    for _ in range(n_blocks):
                        for line in range(AHEAD, AHEAD + size, 64):
                            prefetch_l1(panel, line)
                        sums = add_block(kind, sums, panel, xt, x_row, dt, st, d_row)
                        panel, xt, dt, st = panel + size, xt + 32, dt + 4, st + 4
                    store_sums(sums, out + (t * n_rows + r) * 4, n_rows * 4, n_tokens - t)
            first = take(ticket) * (PANELS * ROWS)

    return _interleaved_kernel
