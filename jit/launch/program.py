"""The launcher's program, in LLVM's assembly language (`launcher` says what it does).

It makes the same calls as GCC does for `#pragma omp parallel`. Imports no Numba.
"""

import time

from ..kernel_cache import emit
from .record import PHASE, RECORD, TICKET

SYMBOL = "kvarn_launch"


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
            f"i64 @{SYMBOL}(i64 %records, i64 %n, i64 %threads, i64 %flag)",
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


def compiled() -> emit.Code:
    """Its machine code: `int64 SYMBOL(records, n, threads, flag)`, all int64."""
    return emit.compile_text(_TEXT, SYMBOL)
