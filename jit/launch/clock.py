"""`tell_time`: a launch that writes the time, so that the parts of a recorded graph can be told."""

from __future__ import annotations

import time
from functools import cached_property

from ..kernel_cache import machine_code
from .lazy import DefinedKernel, lazy_kernel
from .record import ARGUMENTS

_TEXT = f"""
declare i32 @clock_gettime(i32, ptr)

define i64 @{{symbol}}(i64 %record, i64 %part, i64 %parts) {{{{
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %word = add i64 %record, {ARGUMENTS}
  %word_at = inttoptr i64 %word to ptr
  %place = load ptr, ptr %word_at
  store i64 %now, ptr %place
  ret i64 0
}}}}
"""


class _Clock(DefinedKernel):
    kinds, traits = "i", ()

    @cached_property
    def address(self) -> int:  # type: ignore[override]
        return machine_code.link(self.code("kvarn_clock"))

    def code(self, symbol: str) -> machine_code.Code:
        made = machine_code.of_text(_TEXT.format(symbol=symbol), symbol)
        return made._replace(kinds=self.kinds)


@lazy_kernel
def _clock() -> DefinedKernel:
    return _Clock()


def tell_time(address: int) -> None:
    """Write nanoseconds, from any moment, to the int64 at `address`, where it is reached."""
    _clock(address, parallel=False)
