"""The launcher: runs the launches of a graph, phase after phase, in all threads.

With GNU's OpenMP it needs no Numba. It is a program in LLVM's assembly language, which makes the
same calls as GCC does for `#pragma omp parallel`:

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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .. import forks, kernel_cache, threads
from ..errors import JitError
from ..kernel_cache import machine_code, sources
from .record import PHASE, RECORD, TICKET

_SYMBOL = "kvarn_launch"
LONG = 10_000_000
"""Nanoseconds of a long launch."""


class Stopped(JitError):
    """A flag was set while kernels ran: their output is not complete."""


def _function(
    head: str, first: str, step: str, stop: str, body: str, begin: str = "", end: str = "  ret void"
) -> str:
    """A function: `begin`, then `body` for %i = first, first + step, … below stop, then `end`."""
    return f"""
define {head} {{
entry:{begin}
  br label %head
head:
  %i = phi i64 [ {first}, %entry ], [ %next, %tail ]
  %more = icmp slt i64 %i, {stop}
  br i1 %more, label %body, label %done
body:{body}
  br label %tail
tail:
  %next = add i64 %i, {step}
  br label %head
done:
{end}
}}
"""


NOW = f"""
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() {{
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}
"""
"""A function that gives nanoseconds, from any origin."""

# The threads get a phase as (address of its first record, launches, parts).
_TEXT = "".join(
    (
        NOW,
        """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
""",
        _function(
            "internal void @clear(i64 %first, i64 %launches)",
            *("0", "1", "%launches"),
            f"""
  %offset = mul i64 %i, {RECORD}
  %record = add i64 %first, %offset
  %ticket = add i64 %record, {TICKET}
  %place = inttoptr i64 %ticket to ptr
  store i64 0, ptr %place""",
        ),
        _function(
            "internal void @part(i64 %first, i64 %launches, i64 %part, i64 %parts)",
            *("0", "1", "%launches"),
            f"""
  %offset = mul i64 %i, {RECORD}
  %record = add i64 %first, %offset
  %place = inttoptr i64 %record to ptr
  %kernel = load ptr, ptr %place
  call i64 %kernel(i64 %record, i64 %part, i64 %parts)""",
        ),
        _function(
            "internal void @region(ptr %phase)",
            *("%thread", "%team", "%parts"),
            """
  call void @part(i64 %first, i64 %launches, i64 %i, i64 %parts)""",
            # A team can have fewer threads than parts, so that a thread does several.
            """
  %first = load i64, ptr %phase
  %launches_at = getelementptr i64, ptr %phase, i64 1
  %launches = load i64, ptr %launches_at
  %parts_at = getelementptr i64, ptr %phase, i64 2
  %parts = load i64, ptr %parts_at
  %thread32 = call i32 @omp_get_thread_num()
  %thread = sext i32 %thread32 to i64
  %team32 = call i32 @omp_get_num_threads()
  %team = sext i32 %team32 to i64""",
        ),
        _function(
            # Returns the nanoseconds that it took, or -1 if the word at `flag` ended it.
            f"i64 @{_SYMBOL}(i64 %records, i64 %n, i64 %threads, i64 %flag)",
            *("0", "%launches", "%n"),
            f"""
  %stop = load atomic i64, ptr %flag_at monotonic, align 8
  %is_stopped = icmp ne i64 %stop, 0
  br i1 %is_stopped, label %stopped, label %phase_begins
stopped:
  ret i64 -1
phase_begins:
  %offset = mul i64 %i, {RECORD}
  %first = add i64 %records, %offset
  %word = add i64 %first, {PHASE}
  %word_at = inttoptr i64 %word to ptr
  %size = load i64, ptr %word_at
  %is_serial = icmp eq i64 %size, 0
  %launches = select i1 %is_serial, i64 1, i64 %size
  call void @clear(i64 %first, i64 %launches)
  %is_single = icmp eq i64 %threads, 1
  %is_alone = or i1 %is_serial, %is_single
  br i1 %is_alone, label %alone, label %together
alone:
  call void @part(i64 %first, i64 %launches, i64 0, i64 1)
  br label %tail
together:
  store i64 %first, ptr %phase
  store i64 %launches, ptr %launches_at
  %team = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @region, ptr %phase, i32 %team, i32 0)""",
            """
  %phase = alloca [3 x i64]
  %launches_at = getelementptr i64, ptr %phase, i64 1
  %parts_at = getelementptr i64, ptr %phase, i64 2
  store i64 %threads, ptr %parts_at
  %flag_at = inttoptr i64 %flag to ptr
  %begin = call i64 @now()""",
            """
  %end = call i64 @now()
  %took = sub i64 %end, %begin
  ret i64 %took""",
        ),
    )
)

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
    """From now on, launches run nothing: kernels are compiled for another CPU."""
    global _launchers  # noqa: PLW0603
    load()
    _launchers = _Launchers(_nothing, _nothing)


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
    name = f"{_SYMBOL}-{sources.digest(__name__)}.code"
    if (loaded := kernel_cache.find(name, machine_code.load)) is not None:
        address, _ = loaded
    else:
        code = machine_code.compile_text(_TEXT, _SYMBOL)
        kernel_cache.keep(name, machine_code.to_bytes(code))
        address = machine_code.link(code)
    kinds = (ctypes.c_int64,) * 5
    return _Launchers(ctypes.PYFUNCTYPE(*kinds)(address), ctypes.CFUNCTYPE(*kinds)(address))


def _numba() -> _Launchers:
    """Numba's functions keep the lock, and this one does not measure its time."""
    from .by_numba import run

    return _Launchers(run, run)
