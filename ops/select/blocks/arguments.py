"""What the kernels for blocks of similar keys work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch.arguments import (
    F32_1D,
    F32_2D,
    F32_3D,
    F32_4D,
    I8_4D,
    I64_1D,
    I64_2D,
    U16_2D,
    U32_2D,
    U64_2D,
    U64_3D,
)
from ...attention.layout import StoredLayout
from ..choice import Candidates
from ..sketch.arguments import Products


class Keys(NamedTuple):
    """Stored keys, where their blocks go, and scratch of each thread.

    segments, items: addresses.
    """

    segments: I64_1D
    layout: StoredLayout
    items: I64_1D
    rotation: F32_1D
    works: F32_2D
    """The keys of a segment, and what is computed of one block."""
    order: U16_2D
    entries: U64_2D
    spare: U64_2D
    histogram: I64_2D


class Query(NamedTuple):
    """One token's query heads (1, H, E), what they choose from, and the lists they fill.

    looked: blocks that were looked at, of each KV head.
    """

    q: F32_3D
    segments: I64_1D
    items: I64_1D
    rotation: F32_1D
    lists: U32_2D
    counts: I64_1D
    looked: I64_1D


class Scan(NamedTuple):
    """What ruling blocks out works with, for two segments in turn; of each thread."""

    queries: F32_3D
    reach: F32_2D
    """How far above q . mean a key may be, in units of its block's spread, of each query."""
    units: F32_2D
    """What a unit of a query's sums of signs stands for."""
    centres: F32_4D
    """[turn][query][block]: q . mean."""
    bounds: F32_4D
    wanted: U64_3D
    """[turn][query]: a bit for each block."""
    sums: F32_2D
    """32 sums in a cache line, then 32 estimates."""


class Scratch(NamedTuple):
    """Of each thread."""

    products: Products
    turned: F32_3D
    tables: I8_4D
    scan: Scan
    order: I64_2D
    found: Candidates
    chosen: U64_2D
    listed: U32_2D
    """The candidates of a round of queries."""
