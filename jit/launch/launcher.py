"""The launcher: runs the launches of a graph, phase after phase, in all threads.

With GNU's OpenMP it needs no Numba. It is a program in LLVM's assembly language, which calls what
GCC calls for `#pragma omp parallel`:

    for each phase:   clear the tickets of its launches
                      serial, or only one thread:  part(…, 0, 1)
                      else in each thread:         part(…, thread, threads)
    part:             call the kernel of each launch of the phase with this share

With other threads (`threads.layer`), `by_numba` does the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .. import forks, kernel_cache, threads
from ..kernel_cache import machine_code
from .record import PHASE, RECORD, TICKET

_SYMBOL = "kvarn_launch"


def _function(head: str, first: str, step: str, last: str, body: str, begin: str = "") -> str:
    """A function: `begin`, then `body` for %i = first, first + step, … while it is below last."""
    return f"""
define {head} {{
entry:{begin}
  br label %head
head:
  %i = phi i64 [ {first}, %entry ], [ %next, %tail ]
  %more = icmp slt i64 %i, {last}
  br i1 %more, label %body, label %done
body:{body}
  br label %tail
tail:
  %next = add i64 %i, {step}
  br label %head
done:
  ret void
}}
"""


# A phase is given to the threads as (address of its first record, launches, parts).
_TEXT = "".join(
    (
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
            # A team can have fewer threads than there are parts, so a thread may do several.
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
            f"void @{_SYMBOL}(i64 %records, i64 %n, i64 %threads)",
            *("0", "%launches", "%n"),
            f"""
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
  store i64 %threads, ptr %parts_at""",
        ),
    )
)

Launch = Callable[[int, int, int], None]
_launch: Launch | None = None


def run(records: int, n: int, n_threads: int) -> None:
    """Run n launches, whose records begin at an address."""
    global _launch  # noqa: PLW0603  chosen once, at the first launch
    if _launch is None or forks.forked:
        forks.check()
        _launch = _gnu() if threads.uses_gnu() else _numba()
    _launch(records, n, n_threads)


def _gnu() -> Launch:
    name = f"{_SYMBOL}.code"
    if (found := kernel_cache.find(name, machine_code.load)) is not None:
        address: int | None = found[0]
    else:
        made = machine_code.of_text(_TEXT, _SYMBOL)
        kernel_cache.keep(name, machine_code.to_bytes(made))
        address = machine_code.link(made)
    assert address is not None  # `uses_gnu` has loaded the library that it calls
    # A PYFUNCTYPE keeps the interpreter's lock, as Numba's functions do.
    function = ctypes.PYFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    launch: Launch = function(address)
    return launch


def _numba() -> Launch:
    from .by_numba import run

    launch: Launch = run
    return launch
