"""Steps: kernels that are called by address, at once or as a recorded sequence. Imports no Numba.

    add = kernel(f"{__package__}.kernels", "add")       add(x.ctypes.data, y.ctypes.data, 0.5)
    graph = record(token)                               graph.run()

A token of decode is some hundred small operations. Entered from Python one by one, each waits for
an interpreter that the weights have pushed out of the caches; recorded once, they are one call
(`launch`; `layout` draws a record).

What a process needs of a kernel that was compiled before is its machine code. So whoever calls one
names the module that defines it (`steps.step`) and does not import it: Numba, which all of those
modules need, takes longer to be imported than a model to be opened.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib import import_module
from struct import Struct
from typing import ParamSpec

import numpy as np
from numpy.typing import NDArray

from .. import kept
from ..arena import aligned
from ..errors import OpsError
from ..kept import code
from ..threads import n_threads
from .launch import run
from .layout import PHASE, RECORD

P = ParamSpec("P")

_PHASE_WORD = Struct("q")


class Step(ABC):
    """A kernel, to be called with its arguments: now, or later if a graph is being recorded."""

    @property
    @abstractmethod
    def address(self) -> int:
        """Where its code is; compiled, or loaded from the cache, when first asked for."""

    @property
    @abstractmethod
    def kinds(self) -> str:
        """A letter for each argument, see `steps.step`."""

    @property
    @abstractmethod
    def facts(self) -> tuple[int, ...]:
        """What its callers have to know of it; the kernel's docstring names them."""

    @cached_property
    def words(self) -> Struct:
        """How its address, the phase and its arguments stand in a record."""
        return Struct("qq" + self.kinds.replace("i", "q").replace("f", "d"))

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


class KeptStep(Step):
    """One that is known by where it is defined: `kernel` and `kernels` make them.

    The file of its code is named by module, name and parameters alone, for the folder's key has the
    sources of ops/: a module elsewhere calls its steps as `steps.define` makes them.
    """

    def __init__(self, module: str, name: str, parameters: tuple[object, ...] | None) -> None:
        self.module, self.name, self.parameters = module, name, parameters
        place = repr((module, name, parameters))
        self._stem = f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:40]}"

    @cached_property
    def _linked(self) -> tuple[int, str, tuple[int, ...]]:
        """Its address, kinds and facts."""
        if (found := kept.find(f"{self._stem}.code", code.load)) is not None:
            address, known = found
            return address, known.kinds, known.facts
        defined = getattr(import_module(self.module), self.name)
        step = defined if self.parameters is None else defined(*self.parameters)
        made = step.code(f"kvarn_step_{self._stem.rpartition('-')[2]}")
        if made is None:
            return step.address, step.kinds, step.facts
        kept.keep(f"{self._stem}.code", code.to_bytes(made))
        return code.link(made) or step.address, step.kinds, step.facts

    @property
    def address(self) -> int:
        return self._linked[0]

    @property
    def kinds(self) -> str:
        return self._linked[1]

    @property
    def facts(self) -> tuple[int, ...]:
        return self._linked[2]


def kernel(module: str, name: str) -> Step:
    """The step of this name in a module, which is imported only where it has to be compiled."""
    return KeptStep(module, name, None)


def kernels(module: str, name: str) -> Callable[..., Step]:
    """What makes the steps of a family: a module's function of this name gives the one for some
    parameters, whose repr tells them apart in every process."""

    @cache
    def of(*parameters: object) -> Step:
        return KeptStep(module, name, parameters)

    return of


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
        self._place(np.zeros((1, RECORD), np.uint8))

    def _place(self, old: NDArray[np.uint8]) -> None:
        """Move the records to memory for twice as many."""
        self._records = aligned(2 * old.size, np.uint8).reshape(-1, RECORD)
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
            _PHASE_WORD.pack_into(self._records[self._first], PHASE, self._size)
        else:
            self._first, self._size = self._n, 1
        self._group = group if parallel else 0
        self._n += 1

    def run(self) -> None:
        """Run the steps."""
        run(self._address, self._n, n_threads())


def recording() -> bool:
    """Whether steps are being recorded and not run."""
    return bool(_recording)


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
