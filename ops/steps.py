"""Kernels that are called by address, at once or as a recorded sequence.

    @step("iif")                                    add(1, x.ctypes.data, y.ctypes.data, 0.5)
    def add(part, parts, ticket, x, y, factor): …   graph = record(token); graph.run()

A token of decode is some hundred small operations. Entered from Python one by one, each waits for
an interpreter that the weights have pushed out of the caches; recorded once, they are one call.
One jitted function launches them all, so that kernels are compiled without a parallel loop.

A call is a record of 64-bit words, on cache lines of its own:

    word 0        address of the kernel
    word 1        in the first step of a phase: how many steps it has; 0 for a serial one
    words 2 … 15  arguments
    word 16       the ticket: threads take parts of the work by counting it up

The steps of a phase run side by side, in all threads; the next phase begins when all are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from struct import Struct
from typing import ParamSpec

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .cache import OPTIONS, jit
from .code import StepCache
from .errors import OpsError
from .simd import I64, INTP, aligned, store
from .threads import n_threads

P = ParamSpec("P")

MOST_ARGUMENTS = 14
_RECORD, _PHASE, _TICKET = 192, 8, 128  # bytes of a record, where its words are
_PHASE_WORD = Struct("q")
_SIGNATURE = (types.int64, types.int64, types.int64)


@intrinsic(prefer_literal=True)
def _arguments(typingctx, kinds, record):
    """The record's arguments as a tuple: "i" an integer, "f" a float64."""
    of = {"i": types.int64, "f": types.float64}
    out = types.Tuple([of[kind] for kind in kinds.literal_value])

    def codegen(ctx, b, sig, vals):
        words = []
        for i, ty in enumerate(out.types):
            place = b.add(vals[1], ir.Constant(I64, 16 + 8 * i))
            pointer = b.inttoptr(place, ctx.get_value_type(ty).as_pointer())
            words.append(b.load(pointer))
        return ctx.make_tuple(b, out, words)

    return out(kinds, INTP), codegen


@intrinsic
def word(typingctx, address, offset):
    """The int64 at `address` + `offset` bytes."""

    def codegen(ctx, b, sig, vals):
        return b.load(b.inttoptr(b.add(*vals), I64.as_pointer()))

    return types.int64(INTP, INTP), codegen


@intrinsic
def _call(typingctx, record, part, parts):
    """Call the kernel of a record."""

    def codegen(ctx, b, sig, vals):
        function = ir.FunctionType(I64, [I64] * 3).as_pointer()
        address = b.load(b.inttoptr(vals[0], I64.as_pointer()))
        return b.call(b.inttoptr(address, function), vals)

    return types.int64(INTP, INTP, INTP), codegen


@jit(parallel=True)
def _run(records, n, threads):
    """Launch n steps, whose records begin at an address."""
    i = 0
    while i < n:
        first = records + i * _RECORD
        size = word(first, _PHASE)
        for k in range(size):
            store(first, k * _RECORD + _TICKET, 0)
        if size == 0:
            _call(first, 0, 1)
        elif threads == 1:
            for k in range(size):
                _call(first + k * _RECORD, 0, 1)
        else:
            for part in prange(threads):
                for k in range(size):
                    _call(first + k * _RECORD, part, threads)
        i += max(size, 1)


class Step:
    """A kernel, to be called with its arguments: now, or later if a graph is being recorded."""

    def __init__(self, kinds: str, function: Callable[..., None]) -> None:
        if len(kinds) > MOST_ARGUMENTS:
            raise OpsError(f"kernel {function.__name__}: {len(kinds)} arguments, at most 14 fit")
        kernel = jit(function)

        @jit
        def _entry(record, part, parts):
            kernel(part, parts, record + _TICKET, *_arguments(kinds, record))
            return 0

        self.kernel, self._entry = kernel, _entry
        self._cache = StepCache(_entry.py_func, OPTIONS)
        _entry._cache = self._cache
        self.words = Struct("qq" + kinds.replace("i", "q").replace("f", "d"))

    @cached_property
    def address(self) -> int:
        """Where its code is; compiled, or loaded from the cache, when first asked for."""
        if (kept := self._cache.address(_SIGNATURE)) is not None:
            return kept
        self._entry.compile(_SIGNATURE)
        result = self._entry.overloads[_SIGNATURE]
        name = result.fndesc.llvm_cfunc_wrapper_name
        return int(result.library.get_pointer_to_function(name))

    def __call__(self, *arguments: float, parallel: bool = True, group: int = 0) -> None:
        """Run in all threads, or in the calling one.

        Steps of one group (a number but 0) that follow each other read the same input and write to
        different places: they may run side by side.
        """
        if _recording:
            _recording[-1].add(self, arguments, parallel, group)
        else:
            _single.clear()
            _single.add(self, arguments, parallel, group)
            _single.run()


def step(kinds: str) -> Callable[[Callable[..., None]], Step]:
    """Decorator: `f(part, parts, ticket, *arguments)` as a `Step`.

    kinds: a letter for each argument, "i" for an integer or address, "f" for a float. The kernel
    does part `part` of `parts`; `ticket` is the address of an int64 that starts at 0, for kernels
    whose threads share work by counting.
    """
    return lambda function: Step(kinds, function)


class Cell(int):
    """A number that recorded steps read from memory when they run: `address` is where it stands."""

    address: int

    @classmethod
    def at(cls, memory: NDArray[np.int64]) -> Cell:
        """The number that `memory` (1,) holds now, and where it is."""
        cell = cls(memory[0])
        cell.address = int(memory.ctypes.data)
        return cell


def cell_of(number: int) -> int:
    """Address of a number for a step: its cell, or for a plain number a place until the next call.

    Raises OpsError for a plain number while a graph is recorded, which would keep its place only.
    """
    if isinstance(number, Cell):
        return number.address
    if _recording:
        raise OpsError(f"recording a step at {number}: expected a cell, whose number may change")
    _plain[0] = number
    return int(_plain.ctypes.data)


class Graph:
    """Steps in their order, launched by one call."""

    def __init__(self) -> None:
        self._n, self._group, self._first, self._size = 0, 0, 0, 0
        self._place(np.zeros((1, _RECORD), np.uint8))

    def _place(self, old: NDArray[np.uint8]) -> None:
        """Move the records to memory for twice as many."""
        self._records = aligned(2 * old.size, np.uint8).reshape(-1, _RECORD)
        self._records[: len(old)] = old
        self._address = int(self._records.ctypes.data)

    def __len__(self) -> int:
        return self._n

    def clear(self) -> None:
        """Forget all steps."""
        self._n = self._group = 0

    def add(self, step: Step, arguments: Sequence[float], parallel: bool, group: int) -> None:
        """Append a step; see `Step.__call__`."""
        if self._n == len(self._records):
            self._place(self._records)
        step.words.pack_into(self._records[self._n], 0, step.address, int(parallel), *arguments)
        if parallel and group and group == self._group:
            self._size += 1
            _PHASE_WORD.pack_into(self._records[self._first], _PHASE, self._size)
        else:
            self._first, self._size = self._n, 1
        self._group = group if parallel else 0
        self._n += 1

    def run(self) -> None:
        """Run the steps."""
        _run(self._address, self._n, n_threads())


_single = Graph()
_plain = np.zeros(1, np.int64)
_recording: list[Graph] = []


def record(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Graph:
    """Call `function`; the steps that it calls are not run but kept, in the graph returned.

    Only the engine's thread runs kernels, so only it records. Arrays whose addresses were recorded
    have to stay: the graph holds numbers. What is not a step (a NumPy call) runs at once and is not
    part of the graph.
    """
    graph = Graph()
    _recording.append(graph)
    try:
        function(*args, **kwargs)
    finally:
        _recording.pop()
    return graph
