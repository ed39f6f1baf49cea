"""Vectors that live in registers, for Numba kernels.

    from ..simd import f32x16, fma, load_f32, store      or      from .. import simd as v

Each module lists in `__all__` the names for kernels and emitters:

    types    vector types; how LLVM instructions are written
    memory   loads, stores, prefetches
    lanes    arithmetic and conversions lane by lane, sums and maxima over the lanes
    math     functions that no CPU has an instruction for
    dot      dot products of 8-bit numbers, the one operation that is written per variant
"""

# ruff: noqa: F403
from ..variant import FEATURES as FEATURES
from ..variant import VARIANT as VARIANT
from .dot import *
from .lanes import *
from .math import *
from .memory import *
from .types import *
