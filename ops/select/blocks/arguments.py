"""What the kernels for blocks of similar keys work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.layout import StoredLayout
from ..choice import Lists
from ..sketch.arguments import Frame, Rotation, Search


class Keys(NamedTuple):
    """Stored keys, where their blocks go, and scratch of each thread.

    segments, items: addresses.
    """

    segments: arrays.I64_1D
    layout: StoredLayout
    items: arrays.I64_1D
    rotation: arrays.F32_1D
    works: arrays.F32_2D
    """The keys of a segment, and what is computed of one block."""
    order: arrays.U16_2D
    entries: arrays.U64_2D
    spare: arrays.U64_2D
    histogram: arrays.I64_2D


class BlockedKeys(NamedTuple):
    """Stored keys and their blocks: base addresses of the segments of K and V and of the column,
    the rotation, and the plain frame."""

    segments: arrays.I64_1D
    items: arrays.I64_1D
    rotation: Rotation
    frame: Frame


class Query(NamedTuple):
    """One token's query heads (1, H, E), what they choose from, and the lists they fill.

    taken: (J, 0), as only the tokens outside the range are taken.
    """

    q: arrays.F32_3D
    keys: BlockedKeys
    taken: arrays.U64_2D
    lists: Lists
    scanned: arrays.I64_1D
    """[KV head]: how many blocks were scanned."""


class Scan(NamedTuple):
    """Scratch of ruling blocks out and scanning others, for two segments alternately."""

    queries: arrays.F32_3D
    reach: arrays.F32_2D
    """REACH * |q| / sqrt(head_dim) of each query: a bound is q . mean + reach * spread."""
    units: arrays.F32_2D
    """What a sum of signs of 1 stands for, of each query."""
    mean_scores: arrays.F32_4D
    """[buffer][query][block]: q . mean."""
    bounds: arrays.F32_4D
    masks: arrays.U64_3D
    """[buffer][query]: a bit for each block that may reach the query's limit."""
    sums: arrays.F32_2D
    """32 sums in a cache line, then 32 estimates."""


class Scratch(NamedTuple):
    """Of each thread."""

    search: Search
    scan: Scan
