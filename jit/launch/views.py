"""The arguments of a kernel in Numba: a NamedTuple whose arrays are views of the caller's memory.

Numba counts the references to an array, and to each slice of it, by atomic operations. A `View` is
an array that owns no memory, so that nothing is counted.
"""

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array

from ..simd import I64, INTP
from .arguments import ArrayField, fields_of, is_declared, n_words


class View(types.Array):
    """A contiguous array without reference counting."""

    def __init__(self, dtype, ndim, layout="C", readonly=False, aligned=True):
        name = f"view({dtype}, {ndim}, {layout})"
        super().__init__(dtype, ndim, layout, readonly, name, aligned)

    def copy(self, dtype=None, ndim=None, layout=None, readonly=None):
        """The type of a slice, for Numba."""
        return View(
            self.dtype if dtype is None else dtype,
            self.ndim if ndim is None else ndim,
            self.layout if layout is None else layout,
        )


@register_model(View)
class ViewModel(models.ArrayModel):
    """Numba's layout of an array, without the methods that find references to count."""

    def has_nrt_meminfo(self):
        return False

    def get_nrt_meminfo(self, builder, value):
        return None

    def traverse(self, builder):
        return []

    def traverse_models(self):
        return []

    def traverse_types(self):
        return []


def numba_type(field):
    """Numba's type of a field of `arguments`."""
    if isinstance(field, ArrayField):
        return View(numpy_support.from_dtype(field.dtype), field.ndim)
    if is_declared(field):
        return _named_tuple([numba_type(f) for f in fields_of(field).values()], field)
    return {int: types.int64, float: types.float64}[field]


def _named_tuple(inner, declared):
    """The type that Numba gives to a tuple made in a kernel: one variable can hold either."""
    if len(set(inner)) == 1:
        return types.NamedUniTuple(inner[0], len(inner), declared)
    return types.NamedTuple(inner, declared)


def load(ctx, b, field, words, at):
    """The value of a field whose words begin with number `at`."""

    def word(i, ty=I64):
        place = b.gep(words, [ir.Constant(I64, at + i)])
        return b.load(place if ty is I64 else b.bitcast(place, ty.as_pointer()))

    if isinstance(field, ArrayField):
        return _array(ctx, b, numba_type(field), word(0), [word(1 + i) for i in range(field.ndim)])
    if is_declared(field):
        inner, values = list(fields_of(field).values()), []
        for inner_field in inner:
            values.append(load(ctx, b, inner_field, words, at))
            at += n_words(inner_field)
        return ctx.make_tuple(b, numba_type(field), values)
    return word(0, ir.DoubleType() if field is float else I64)


def _array(ctx, b, view, place, shape):
    item = ctx.get_data_type(view.dtype)
    size = ctx.get_constant(types.intp, ctx.get_abi_sizeof(item))
    strides: list[ir.Value] = []
    stride = size
    for n in reversed(shape):
        strides.insert(0, stride)
        stride = b.mul(stride, n)
    array = make_array(view)(ctx, b)
    populate_array(array, b.inttoptr(place, item.as_pointer()), shape, strides, size, meminfo=None)
    return array._getvalue()


@intrinsic
def address(typingctx, array):
    """Address of an array's first element, int64."""

    def codegen(ctx, b, sig, vals):
        data = make_array(sig.args[0])(ctx, b, vals[0]).data
        return b.ptrtoint(data, I64)

    return types.int64(array), codegen


@intrinsic
def of_thread(typingctx, arrays, thread):
    """A thread's row of an array (threads, …), or of each array in a tuple of such."""
    out = _without_threads(arrays)

    def codegen(ctx, b, sig, vals):
        return _row(ctx, b, sig.args[0], out, vals[0], vals[1])

    return out(arrays, INTP), codegen


def _without_threads(ty):
    if isinstance(ty, View):
        return ty.copy(ndim=ty.ndim - 1)
    return _named_tuple([_without_threads(inner) for inner in ty.types], ty.instance_class)


def _row(ctx, b, ty, out, value, i):
    if isinstance(ty, types.BaseTuple):
        rows = [
            _row(ctx, b, inner, row, b.extract_value(value, n), i)
            for n, (inner, row) in enumerate(zip(ty.types, out.types, strict=True))
        ]
        return ctx.make_tuple(b, out, rows)
    whole = make_array(ty)(ctx, b, value)
    shape = [b.extract_value(whole.shape, n) for n in range(1, ty.ndim)]
    first = b.mul(i, b.extract_value(whole.strides, 0))
    place = b.inttoptr(b.add(b.ptrtoint(whole.data, I64), first), whole.data.type)
    return _array(ctx, b, out, b.ptrtoint(place, I64), shape)
