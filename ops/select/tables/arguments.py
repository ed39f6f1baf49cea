"""What the kernels for hash tables work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.layout import StoredLayout


class Shape(NamedTuple):
    """`planes.Tables` as numbers."""

    bits: int
    count: int
    low_bits: int
    groups: int
    item_bytes: int


class Work(NamedTuple):
    """Of each thread. rows: vectors to hash; signs: bytes of bits, one for each plane."""

    rows: arrays.F32_3D
    signs: arrays.U8_3D
    ends: arrays.I64_2D
    """Of the groups of a table, while it is sorted."""
    entries: arrays.U64_2D
    """Room for u16 [1024]: a sorted table."""


class Keys(NamedTuple):
    """Stored keys and the tables they go to. segments, items: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    items: arrays.I64_1D
    centre: arrays.F32_2D
    """(J, padded)"""
    planes: arrays.F32_3D
    work: Work


class Rows(NamedTuple):
    """Vectors (1, H, E) and their codes, u16 [row][table]."""

    q: arrays.F32_3D
    codes: arrays.U16_2D
    planes: arrays.F32_3D
    work: Work


class Query(NamedTuple):
    """Queries (1, H, E) and their codes, what they draw from, and what they fill."""

    q: arrays.F32_3D
    codes: arrays.U16_2D
    segments: arrays.I64_1D
    layout: StoredLayout
    items: arrays.I64_1D
    centre: arrays.F32_2D
    weights: arrays.F32_1D
    """-log u by p, see `log_weight_table`."""
    lists: arrays.U32_2D
    counts: arrays.I64_1D
    log_weights: arrays.F32_2D
    entries_read: arrays.I64_1D
    """(J,)"""


class Scratch(NamedTuple):
    """Of each thread."""

    once: arrays.U64_3D
    """[query][word]: the tokens of a segment that agree in a table."""
    twice: arrays.U64_3D
    """... in two tables."""
    drawn: arrays.U64_3D
    """[query][word]: the tokens that it has drawn, of all segments."""
    marks: arrays.U64_2D
    """[word]: the tokens that any query has drawn."""
    rows: arrays.F32_3D
    """[queries, then the key][element]"""
    norms: arrays.F32_2D
    """[query]"""
