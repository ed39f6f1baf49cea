"""What the kernels for the boxes of tiles work on. Imports no Numba."""

from typing import NamedTuple

from kvarn.jit.launch import arguments as arrays
from kvarn.ops.attention.layout import StoredLayout
from kvarn.ops.select.choice import Candidates


class Keys(NamedTuple):
    """Stored keys, and where the boxes of their tiles go. segments, items: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    items: arrays.I64_1D
    works: arrays.F32_2D
    """Of each thread: a key, the least and the greatest of a tile's keys, 256 floats each."""


class Query(NamedTuple):
    """One token's query heads (1, H, E), the boxes, and the lists that are filled."""

    q: arrays.F32_3D
    items: arrays.I64_1D
    lists: arrays.U32_2D
    counts: arrays.I64_1D


class Scratch(NamedTuple):
    """Of each thread and query head that share a pass."""

    queries: arrays.F32_3D
    """With zeros up to the dimensions that are stored."""
    lines: arrays.I64_3D
    """[query][dimension]: byte of the side of the box that bounds the product."""
    slack: arrays.F32_2D
    """What rounding may take off a bound, in steps of the tile's largest scale."""
    bounds: arrays.F32_2D
    """Of the 64 tiles of a segment, for one query."""
    candidates: Candidates
