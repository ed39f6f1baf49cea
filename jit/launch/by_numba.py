"""The launcher for Numba's threads (`launcher` has the one for GNU's OpenMP)."""

from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from ..cached import jit
from ..simd import I64, INTP, store
from .atomics import word
from .record import PHASE, RECORD, TICKET


@intrinsic
def _call(typingctx, record, part, parts):
    """Call the kernel of a record."""

    def codegen(ctx, b, sig, vals):
        function = ir.FunctionType(I64, [I64] * 3).as_pointer()
        address = b.load(b.inttoptr(vals[0], I64.as_pointer()))
        return b.call(b.inttoptr(address, function), vals)

    return types.int64(INTP, INTP, INTP), codegen


@jit(parallel=True)
def run(records, n, threads, flag):
    """Run n launches in the threads of Numba's layer: -1 if the flag ended them, else 0."""
    i = 0
    while i < n:
        if word(flag, 0) != 0:
            return -1
        first = records + i * RECORD
        size = word(first, PHASE)
        for k in range(max(size, 1)):
            store(first, k * RECORD + TICKET, 0)
        if size == 0:
            _call(first, 0, 1)
        elif threads == 1:
            for k in range(size):
                _call(first + k * RECORD, 0, 1)
        else:
            for part in prange(threads):
                for k in range(size):
                    _call(first + k * RECORD, part, threads)
        i += max(size, 1)
    return 0
