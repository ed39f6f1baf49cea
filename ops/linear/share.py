"""How threads share the rows of a matrix: each takes the next part when it has done its last.

Fixed halves would wait for the slower thread: one whose core another program uses, or an efficiency
core. Every row is computed by one thread in one way, so who takes it changes no result.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..simd import I64, INTP


@intrinsic
def take(typingctx, counter):
    """The number of the next part; `counter` is the address of an int64 that starts at 0."""

    def codegen(ctx, b, sig, vals):
        place = b.inttoptr(vals[0], I64.as_pointer())
        return b.atomic_rmw("add", place, ir.Constant(I64, 1), "monotonic")

    return types.int64(INTP), codegen
