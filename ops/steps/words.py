"""Integers that kernels read from memory by address."""

from numba import types
from numba.extending import intrinsic

from ..simd import I64, INTP


@intrinsic
def word(typingctx, address, offset):
    """The int64 at `address` + `offset` bytes."""

    def codegen(ctx, b, sig, vals):
        return b.load(b.inttoptr(b.add(*vals), I64.as_pointer()))

    return types.int64(INTP, INTP), codegen
