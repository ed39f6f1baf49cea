"""What the kernels for exact products work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch.arguments import F32_2D, F32_3D, I64_1D, U8_2D, U64_2D
from ..choice import Candidates, Lists


class Query(NamedTuple):
    """One token's query heads (1, H, E), the stored keys, and the lists that are filled.

    taken: see `Range`; (J, 0) where only the tokens outside the range are taken.
    """

    q: F32_3D
    segments: I64_1D
    taken: U64_2D
    lists: Lists


class Scratch(NamedTuple):
    """Of each thread. rows: the query heads of a KV head, laid out as its keys are."""

    rows: F32_3D
    works: U8_2D
    candidates: Candidates


class AllProducts(NamedTuple):
    """Query heads (1, H, E), the stored keys, scratch of each thread, and all products (H, S)."""

    q: F32_3D
    segments: I64_1D
    rows: F32_3D
    works: U8_2D
    out: F32_2D
