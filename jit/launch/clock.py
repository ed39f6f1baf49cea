"""`tell_time`: a launch that writes the time, to measure the parts of a recorded graph."""

from __future__ import annotations

from functools import cached_property

from ..kernel_cache import emit, machine_code
from .lazy import DefinedKernel, lazy_kernel
from .program import NOW
from .record import ARGUMENTS

_TEXT = f"""{NOW.replace("{", "{{").replace("}", "}}")}
define i64 @{{symbol}}(i64 %record, i64 %part, i64 %parts) {{{{
  %now = call i64 @now()
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

    def code(self, symbol: str) -> emit.Code:
        code = emit.compile_text(_TEXT.format(symbol=symbol), symbol)
        return code._replace(kinds=self.kinds)


@lazy_kernel
def _clock() -> DefinedKernel:
    return _Clock()


def tell_time(address: int) -> None:
    """Write the time in nanoseconds, from any origin, to the int64 at `address`."""
    _clock(address, parallel=False)
