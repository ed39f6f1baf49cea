"""What the kernels for hash tables work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.layout import StoredLayout
from ..choice import Lists


class Shape(NamedTuple):
    """`planes.Tables` as numbers."""

    bits: int
    number: int
    low_bits: int
    groups: int
    tables_each: int
    table_bytes: int
    item_bytes: int


class Work(NamedTuple):
    """Of each thread. rows: vectors to hash; signs: bytes of bits, one for each plane."""

    rows: arrays.F32_3D
    signs: arrays.U8_3D


class Runs(NamedTuple):
    """Columns to be sorted, and memory for it of each thread. items: addresses."""

    items: arrays.I64_1D
    codes: arrays.U16_2D
    """[table][token of the run]"""
    ends: arrays.I64_2D
    """[group]"""


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
    lists: Lists
    log_weights: arrays.F32_2D
    entries_read: arrays.I64_1D
    """(J,)"""


class Scratch(NamedTuple):
    """Of each thread."""

    agreed: arrays.U8_2D
    """[token of a run]: 0, 1, 3, 7 … for the tables in which it agrees."""
    groups: arrays.I64_3D
    """[table]: address of the code's first entry, and of the end of its group."""
    masks: arrays.U64_3D
    """[once, twice][word]: the tokens of a segment that agree in so many tables."""
    drawn: arrays.U64_3D
    """[query][word]: the tokens that it has drawn, of all segments."""
    marks: arrays.U64_2D
    """[word]: the tokens that any query has drawn."""
    rows: arrays.F32_3D
    """[queries, then the key][element]"""
    norms: arrays.F32_2D
    """[query]"""
