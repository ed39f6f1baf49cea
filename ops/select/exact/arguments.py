"""What the kernels for exact products work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch.arguments import F32_2D, F32_3D, I64_1D, U8_2D, U32_2D, U64_2D
from ..choice import Candidates


class Query(NamedTuple):
    """One token's query heads (1, H, E), the stored keys, and the lists that are filled.

    taken: see `Range`; (J, 0) where only those outside the range are.
    """

    q: F32_3D
    segments: I64_1D
    taken: U64_2D
    lists: U32_2D
    counts: I64_1D
    totals: F32_2D
    """[query head][greatest score, sum of exp(score - greatest)] of the range; [0][2]: unwanted."""


class Scratch(NamedTuple):
    """Of each thread. rows: the query heads of a KV head, laid out as its keys are."""

    rows: F32_3D
    works: U8_2D
    found: Candidates


class AllProducts(NamedTuple):
    """The same, for all products (H, S)."""

    q: F32_3D
    segments: I64_1D
    rows: F32_3D
    works: U8_2D
    out: F32_2D
