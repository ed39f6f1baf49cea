"""Arrays in kernels that are called by address, over memory that stays the caller's.

Numba counts references to arrays, and to each slice of them, by atomic operations on a record of
their memory. These have none, so counting ends at once, and machine code without Numba leaves it
out (`kept.code`).
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array

from ..simd import I64, INTP
from .arguments import parse


@intrinsic(prefer_literal=True)
def lent(typingctx, table, kinds):
    """The arrays of the table at an address, as a tuple; kinds: the text that it was made by."""
    arrays = [
        types.Array(numpy_support.from_dtype(dtype), ndim, "C")
        for dtype, ndim in parse(kinds.literal_value)
    ]
    out = types.Tuple(arrays)

    def codegen(ctx, b, sig, vals):
        words = b.inttoptr(vals[0], I64.as_pointer())
        made, at = [], 0
        for array in arrays:
            place, *shape = (
                b.load(b.gep(words, [ir.Constant(I64, at + i)])) for i in range(1 + array.ndim)
            )
            at += 1 + array.ndim
            made.append(_array(ctx, b, array, place, shape))
        return ctx.make_tuple(b, out, made)

    return out(INTP, kinds), codegen


def _array(ctx, b, array, place, shape):
    """An array of no owner at an address."""
    item = ctx.get_data_type(array.dtype)
    size = ctx.get_constant(types.intp, ctx.get_abi_sizeof(item))
    strides: list[ir.Value] = []
    stride = size
    for n in reversed(shape):
        strides.insert(0, stride)
        stride = b.mul(stride, n)
    made = make_array(array)(ctx, b)
    populate_array(made, b.inttoptr(place, item.as_pointer()), shape, strides, size, meminfo=None)
    return made._getvalue()
