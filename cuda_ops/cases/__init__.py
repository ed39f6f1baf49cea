"""The kernels of the room as they are launched, an entry each: what `ahead` compiles."""

from functools import cache

from .case import Case as Case
from .kv import kv_cases
from .linear import linear_cases


@cache
def all_cases() -> tuple[Case, ...]:
    """One case for each way in which a kernel is compiled."""
    cases = (*linear_cases(), *kv_cases())
    return tuple({case.key: case for case in reversed(cases)}.values())[::-1]
