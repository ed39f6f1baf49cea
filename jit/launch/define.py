"""`kernel`: defines a kernel that is called by address. Imports Numba.

    @kernel
    def add(share: Share, x: int, y: int, factor: float): …

A kernel has no parallel loop: the launcher calls it in all threads, with one share per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from inspect import signature
from typing import Any, NamedTuple, overload

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..cached import jit
from ..compiler import compile_part
from ..errors import JitError
from ..kernel_cache import emit
from ..simd import I64, INTP
from .arguments import Field, has_arrays, is_declared, n_words
from .lazy import DefinedKernel
from .record import ARGUMENTS, MOST_WORDS, TICKET
from .views import load, numba_type

_SIGNATURE = (types.int64, types.int64, types.int64)


class Share(NamedTuple):
    """The share of a kernel's work that one thread does: part `part` of `parts`.

    ticket: address of an int64, 0 at first, for threads that take parts one by one (`atomics`).
    """

    part: int
    parts: int
    ticket: int


@jit
def bounds(share, n):  # type: ignore[no-untyped-def]
    """The first and the stop of a thread's part of n items, for parts of equal size."""
    return n * share.part // share.parts, n * (share.part + 1) // share.parts


class CompiledKernel(DefinedKernel):
    """A kernel that Numba compiles from a Python function."""

    kinds = ""
    traits: tuple[int, ...] = ()

    def __init__(self, function: Callable[..., None], traits: tuple[int, ...]) -> None:
        name = function.__name__
        first, *rest = signature(function).parameters.values()
        fields = [parameter.annotation for parameter in rest]
        if first.annotation is not Share:
            raise JitError(f"kernel {name}: its first parameter is not declared as a Share")
        self.kinds, self.traits = "".join(map(_kinds, fields)), tuple(traits)
        if len(self.kinds) > MOST_WORDS:
            raise JitError(f"kernel {name}: {len(self.kinds)} words, at most {MOST_WORDS} fit")
        kernel, arguments = jit(function), _reader(fields)
        kernel._cache.disable()  # `_entry` contains it, so that one file is enough

        def entry(record, part, parts):  # type: ignore[no-untyped-def]
            kernel(Share(part, parts, record + TICKET), *arguments(record))
            return 0

        # The names that users know.
        entry.__module__, entry.__name__ = function.__module__, function.__name__
        self.kernel, self._entry = kernel, jit(entry)

    @cached_property
    def _result(self) -> Any:
        self._entry.compile(_SIGNATURE)
        return self._entry.overloads[_SIGNATURE]

    @cached_property
    def address(self) -> int:  # type: ignore[override]
        name = self._result.fndesc.llvm_cfunc_wrapper_name
        return int(self._result.library.get_pointer_to_function(name))

    def code(self, symbol: str) -> emit.Code:
        """Its machine code, as a function `symbol`. Raises `Unlinkable` if it needs Numba."""
        result = compile_part(self._entry, _SIGNATURE)
        return emit.compile_kernel(result, symbol, self.kinds, self.traits)


def _kinds(field: Field) -> str:
    """A letter for each word of a parameter in a record."""
    if is_declared(field) and not has_arrays(field):
        return "".join("f" if inner is float else "i" for inner in field.__annotations__.values())
    return "f" if field is float else "i"


def _reader(fields: list[Field]) -> Any:
    """An intrinsic that reads the arguments of a record, as a tuple."""

    @intrinsic
    def arguments(typingctx, record):  # type: ignore[no-untyped-def]
        out = types.Tuple([numba_type(field) for field in fields])

        def codegen(ctx, b, sig, vals):  # type: ignore[no-untyped-def]
            start = b.add(vals[0], ir.Constant(I64, ARGUMENTS))
            words, at, values = b.inttoptr(start, I64.as_pointer()), 0, []
            for field in fields:
                by_address = is_declared(field) and has_arrays(field)
                if by_address:
                    block = b.load(b.gep(words, [ir.Constant(I64, at)]))
                    values.append(load(ctx, b, field, b.inttoptr(block, I64.as_pointer()), 0))
                else:
                    values.append(load(ctx, b, field, words, at))
                at += 1 if by_address else n_words(field)
            return ctx.make_tuple(b, out, values)

        return out(INTP), codegen

    return arguments


@overload
def kernel(function: Callable[..., None], /) -> CompiledKernel: ...
@overload
def kernel(*, traits: tuple[int, ...]) -> Callable[[Callable[..., None]], CompiledKernel]: ...
def kernel(function: Callable[..., None] | None = None, /, *, traits: tuple[int, ...] = ()) -> Any:
    """Decorator: make a kernel of `f(share: Share, …)`. Annotations declare its arguments:

    int, float  a number
    NamedTuple  with arrays: the address of its `Arguments`; without: its fields, as `*values`

    traits: numbers that callers need, such as the size of its scratch. Raises JitError if the
    arguments do not fit in a record.
    """

    def wrap(python: Callable[..., None]) -> CompiledKernel:
        return CompiledKernel(python, traits)

    return wrap if function is None else wrap(function)
