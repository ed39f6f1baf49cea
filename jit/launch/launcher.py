"""The launcher: runs the launches of a graph, phase after phase, in all threads.

With GNU's OpenMP it needs no Numba. It is a program in LLVM's assembly language (`program`):

    for each phase:   clear the tickets of its launches
                      serial, or only one thread:  part(…, 0, 1)
                      else in each thread:         part(…, thread, threads)
    part:             call the kernel of each launch of the phase with this share

With other threads (`threads.layer`), `by_numba` does the same.

Before each phase the launcher reads a flag (`stopping_at`). If the flag is set, the call ends. So
another thread can end a computation without the interpreter's lock.

**The lock.** A long launch lets other Python threads run meanwhile. Taking the lock back from a
busy thread costs up to the interpreter's switch interval of 5 ms, so a short launch keeps it. A
launch is long if it took `LONG` the last time. See `docs/internals/performance.md`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .. import forks, kernel_cache, threads
from ..errors import JitError
from ..kernel_cache import machine_code, sources
from . import program

LONG = 10_000_000
"""Nanoseconds of a long launch."""


class Stopped(JitError):
    """A flag was set while kernels ran: their output is not complete."""


Launch = Callable[[int, int, int, int], int]


class _Launchers(NamedTuple):
    """The same function twice."""

    keeping: Launch
    releasing: Launch
    """Releases the interpreter's lock while it runs."""


_launchers: _Launchers | None = None
_never = ctypes.c_int64(0)
_flag = ctypes.addressof(_never)


def load() -> None:
    """Load the launcher ahead of the first launch."""
    global _launchers  # noqa: PLW0603  chosen once
    forks.check()
    _launchers = _gnu() if threads.uses_gnu() else _numba()


def only_compile() -> None:
    """From now on, launches run nothing: kernels are compiled for another CPU, or only found."""
    global _launchers  # noqa: PLW0603
    load()
    _launchers = _Launchers(_nothing, _nothing)


def runs_nothing() -> bool:
    """Whether launches run nothing: what they would have written is not there."""
    return _launchers is not None and _launchers.keeping is _nothing


def _nothing(*_: int) -> int:
    return 0


def run(records: int, n: int, n_threads: int, long: bool = False) -> bool:
    """Run n launches, whose records begin at an address. Returns whether they took long.

    long: whether to release the interpreter's lock meanwhile. Raises `Stopped` if the flag of
    `stopping_at` was set before the last phase began.
    """
    if _launchers is None or forks.forked:
        load()
        assert _launchers is not None
    took = _launchers[long](records, n, n_threads, _flag)
    if took < 0:
        raise Stopped("stopped while kernels ran")
    return took >= LONG


@contextmanager
def stopping_at(flag: int) -> Iterator[None]:
    """In the block, launches raise `Stopped` when the int64 at the address `flag` is not 0.

    For the engine's thread alone, which runs one computation at a time.
    """
    global _flag  # noqa: PLW0603
    before, _flag = _flag, flag
    try:
        yield
    finally:
        _flag = before


def _gnu() -> _Launchers:
    name = f"{program.SYMBOL}-{sources.digest(program.__name__)}.code"
    if (loaded := kernel_cache.find(name, machine_code.load)) is not None:
        address, _ = loaded
    else:
        code = program.compiled()
        kernel_cache.keep(name, machine_code.to_bytes(code))
        address = machine_code.link(code)
    kinds = (ctypes.c_int64,) * 5
    return _Launchers(ctypes.PYFUNCTYPE(*kinds)(address), ctypes.CFUNCTYPE(*kinds)(address))


def _numba() -> _Launchers:
    """Numba's functions keep the lock, and this one does not measure its time."""
    from .by_numba import run

    return _Launchers(run, run)
