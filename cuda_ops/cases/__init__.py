"""The kernels of the room as they are launched, an entry each: what `ahead` compiles."""

from .case import Case
from .kv import KV
from .linear import LINEAR, POINTWISE

CASES: tuple[Case, ...] = (*LINEAR, *POINTWISE, *KV)

__all__ = ["CASES", "Case"]
