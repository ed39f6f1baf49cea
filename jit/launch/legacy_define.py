"""The old way of wiring, until every kernel is declared by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array

from ..cached import jit
from ..errors import JitError
from ..kernel_cache import machine_code
from ..simd import I64, INTP
from .lazy import DefinedKernel
from .legacy import parse
from .record import ARGUMENTS, MOST_WORDS, TICKET


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


_SIGNATURE = (types.int64, types.int64, types.int64)


@intrinsic(prefer_literal=True)
def _arguments(typingctx, kinds, record):
    """The record's arguments as a tuple: "i" an integer, "f" a float64."""
    of = {"i": types.int64, "f": types.float64}
    out = types.Tuple([of[kind] for kind in kinds.literal_value])

    def codegen(ctx, b, sig, vals):
        words = []
        for i, ty in enumerate(out.types):
            place = b.add(vals[1], ir.Constant(I64, ARGUMENTS + 8 * i))
            pointer = b.inttoptr(place, ctx.get_value_type(ty).as_pointer())
            words.append(b.load(pointer))
        return ctx.make_tuple(b, out, words)

    return out(kinds, INTP), codegen


class CompiledStep(DefinedKernel):
    """One whose kernel is at hand as a function of Python."""

    kinds = ""
    traits: tuple[int, ...] = ()

    @property
    def facts(self):
        return self.traits

    def __init__(self, kinds: str, facts: tuple[int, ...], function: Callable[..., None]) -> None:
        if len(kinds) > MOST_WORDS:
            raise JitError(f"kernel {function.__name__}: {len(kinds)} arguments, at most 14 fit")
        kernel = jit(function)

        @jit
        def _entry(record, part, parts):
            kernel(part, parts, record + TICKET, *_arguments(kinds, record))
            return 0

        self.kinds, self.traits = kinds, facts
        self.kernel, self._entry = kernel, _entry

    @cached_property
    def _result(self) -> Any:
        self._entry.compile(_SIGNATURE)
        return self._entry.overloads[_SIGNATURE]

    @cached_property
    def address(self) -> int:  # type: ignore[override]
        name = self._result.fndesc.llvm_cfunc_wrapper_name
        return int(self._result.library.get_pointer_to_function(name))

    def code(self, symbol: str) -> machine_code.Code | None:
        """Its machine code under a name of its own; None where it cannot do without Numba."""
        return machine_code.of_kernel(self._result, symbol, self.kinds, self.traits)


def step(kinds: str, facts: tuple[int, ...] = ()) -> Callable[[Callable[..., None]], CompiledStep]:
    """Decorator: `f(part, parts, ticket, *arguments)` as a `Step`.

    kinds: a letter for each argument, "i" for an integer or address, "f" for a float. The kernel
    does part `part` of `parts`; `ticket` is the address of an int64 that starts at 0, for kernels
    whose threads share work by counting. facts: what its callers have to know of it.
    """
    return lambda function: CompiledStep(kinds, facts, function)
