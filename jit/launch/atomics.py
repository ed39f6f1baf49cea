"""Integers at an address: cells that kernels read, and the ticket by which threads share work.

A thread takes the next part of the work by adding 1 to the ticket. With equal shares, all threads
would wait for the slowest one (on an efficiency core, or on one that another program also uses).
No result depends on which thread does a part.
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
