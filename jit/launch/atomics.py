"""Integers in memory, by address: numbers that kernels read, and the ticket by which they share.

Threads take part after part of the work by counting a ticket up. Fixed halves would wait for the
slower thread: one whose core another program uses, or an efficiency core. Every part is done by one
thread in one way, so who takes it changes no result.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..simd import I64, INTP


@intrinsic
def word(typingctx, address, offset):
    """The int64 at `address` + `offset` bytes."""

    def codegen(ctx, b, sig, vals):
        return b.load(b.inttoptr(b.add(*vals), I64.as_pointer()))

    return types.int64(INTP, INTP), codegen


@intrinsic
def take(typingctx, ticket):
    """The number of the next part; `ticket` is the address of an int64 that starts at 0."""

    def codegen(ctx, b, sig, vals):
        place = b.inttoptr(vals[0], I64.as_pointer())
        return b.atomic_rmw("add", place, ir.Constant(I64, 1), "monotonic")

    return types.int64(INTP), codegen
