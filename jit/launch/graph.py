"""Graphs: launches that are recorded once and run by one call. Imports no Numba.

    graph = record(token)                               graph.run()

Decoding a token takes some hundred small operations. Between two of them Python is slow, as the
weights have pushed the interpreter out of the CPU's caches. A graph runs all of them by one call.

A number that changes from run to run is a `Cell`. Kernels that get its address read it there. Each
run first copies the cells that are arguments themselves into their launches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from struct import Struct
from typing import NamedTuple, ParamSpec

import numpy as np
from numpy.typing import NDArray

from ..arena import aligned
from ..errors import JitError
from ..threads import n_threads
from .launcher import run
from .record import ARGUMENTS, PHASE, RECORD

P = ParamSpec("P")

_PHASE_WORD = Struct("q")


class Cell(int):
    """A number that changes between runs of a graph, with its present value.

    memory, index: its place in an array int64 (n,).
    """

    memory: NDArray[np.int64]
    index: int

    @classmethod
    def at(cls, memory: NDArray[np.int64], index: int = 0) -> Cell:
        """The cell `memory[index]`."""
        cell = cls(memory[index])
        cell.memory, cell.index = memory, index
        return cell

    @property
    def address(self) -> int:
        """The address from which kernels read it."""
        return int(self.memory.ctypes.data) + 8 * self.index


def cell_of(number: int) -> int:
    """The address of a number for a kernel: its cell's, or one that the next call reuses.

    Raises JitError for a plain number while a graph is recorded, as the graph keeps the address.
    """
    if isinstance(number, Cell):
        return number.address
    if _recording:
        raise JitError(f"recording a launch with the number {number}: expected a Cell")
    _plain[0] = number
    return int(_plain.ctypes.data)


class Kernel(ABC):
    """A kernel: a call with its arguments runs it, or records the launch in a graph."""

    long = False
    """Whether its last launch outside a graph took long, see `launcher`."""

    @property
    @abstractmethod
    def address(self) -> int:
        """Address of its code; the first access loads or compiles it."""

    @property
    @abstractmethod
    def kinds(self) -> str:
        """A letter for each word of its arguments: "i" an integer or address, "f" a float64."""

    @property
    @abstractmethod
    def traits(self) -> tuple[int, ...]:
        """Numbers for its callers, see `define.kernel`."""

    @cached_property
    def words(self) -> Struct:
        """The words of its record: its address, the size of the phase, its arguments."""
        return Struct("qq" + self.kinds.replace("i", "q").replace("f", "d"))

    def __call__(self, *arguments: float, parallel: bool = True, group: int = 0) -> None:
        """Run in all threads or, unless `parallel`, in the calling one. While a graph is recorded,
        append the launch to it instead.

        Consecutive launches with the same `group`, not 0, are one phase: they run side by side, so
        none may write memory that another one reads or writes.
        """
        if _recording:
            _recording[-1].add_recorded(self, arguments, parallel, group)
        else:
            _single.clear()
            _single.add(self, arguments, parallel, group)
            _single.long = self.long
            _single.run()
            self.long = _single.long


class Graph:
    """Launches in their order, run by one call."""

    def __init__(self) -> None:
        self._n, self._group, self._first, self._size = 0, 0, 0, 0
        self.long = False
        """Whether the last run took long, see `launcher`."""
        self.kept: list[object] = []
        """Objects that launches read, kept alive here."""
        self._cells: list[tuple[int, Cell]] = []
        self._copies: list[_Copy] = []
        self._place(np.zeros((1, RECORD), np.uint8))

    def _place(self, old: NDArray[np.uint8]) -> None:
        """Move the records to memory for twice as many."""
        self._records = aligned(2 * old.size, np.uint8).reshape(-1, RECORD)
        self._records[: len(old)] = old
        self._address = int(self._records.ctypes.data)

    def __len__(self) -> int:
        return self._n

    def clear(self) -> None:
        """Remove all launches; for a graph without recorded ones."""
        self._n = self._group = 0

    def add(self, kernel: Kernel, arguments: Sequence[float], parallel: bool, group: int) -> None:
        """Append a launch; see `Kernel.__call__`."""
        if self._n == len(self._records):
            self._place(self._records)
        words = kernel.words
        words.pack_into(self._records[self._n], 0, kernel.address, int(parallel), *arguments)
        if parallel and group and group == self._group:
            self._size += 1
            _PHASE_WORD.pack_into(self._records[self._first], PHASE, self._size)
        else:
            self._first, self._size = self._n, 1
        self._group = group if parallel else 0
        self._n += 1

    def add_recorded(
        self, kernel: Kernel, arguments: Sequence[float], parallel: bool, group: int
    ) -> None:
        """`add` for a launch whose arguments may be cells."""
        first = (self._n * RECORD + ARGUMENTS) // 8
        for i, argument in enumerate(arguments):
            if isinstance(argument, Cell):
                self._cells.append((first + i, argument))
        self.add(kernel, arguments, parallel, group)

    def complete(self) -> None:
        """Prepare to copy cells into their launches, all of which are in the graph."""
        words = self._records.reshape(-1).view(np.int64)
        memories = {id(cell.memory): cell.memory for _, cell in self._cells}
        for key, memory in memories.items():
            pairs = [(word, cell.index) for word, cell in self._cells if id(cell.memory) == key]
            targets, sources = np.array(pairs, np.intp).T
            self._copies.append(_Copy(memory, targets, sources, words))
        self._cells.clear()

    def run(self) -> None:
        """Run all launches."""
        for copy in self._copies:
            copy.words[copy.targets] = copy.memory[copy.sources]
        self.long = run(self._address, self._n, n_threads(), self.long)


class _Copy(NamedTuple):
    """Cells memory[sources] that are arguments at words[targets] of a graph's records."""

    memory: NDArray[np.int64]
    targets: NDArray[np.intp]
    sources: NDArray[np.intp]
    words: NDArray[np.int64]


def recording() -> bool:
    """Whether launches are recorded instead of run."""
    return bool(_recording)


def keep(block: object) -> None:
    """Keep an object, which launches read, as long as the graph that is being recorded."""
    _recording[-1].kept.append(block)


_single = Graph()
_plain = np.zeros(1, np.int64)
_recording: list[Graph] = []


def record(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Graph:
    """Call `function` and record the kernels that it calls in a graph, without running them.

    Only the engine's thread may record. The graph keeps arrays that are in `Arguments` alive. It
    has only the addresses of other arrays, which the caller has to keep. Other operations (a NumPy
    call) run at once and are not recorded.
    """
    graph = Graph()
    _recording.append(graph)
    try:
        function(*args, **kwargs)
    finally:
        _recording.pop()
    graph.complete()
    return graph
