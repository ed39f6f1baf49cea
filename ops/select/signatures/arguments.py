"""What the kernels for signatures work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.layout import StoredLayout


class Encoder(NamedTuple):
    """A network: weights of its layers, and their widths. works: scratch of each thread."""

    weights: arrays.F32_1D
    widths: arrays.I64_1D
    works: arrays.F32_2D


class Keys(NamedTuple):
    """Stored keys, and where their signatures go. segments, items: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    items: arrays.I64_1D
    encoder: Encoder


class KeysInSlots(NamedTuple):
    """The same, and the slots (J, T or more) that tokens have taken in each KV head."""

    keys: Keys
    slots: arrays.I32_2D


class Rows(NamedTuple):
    """Vectors (n, E) and their signatures."""

    x: arrays.F32_2D
    out: arrays.U64_1D
    encoder: Encoder


class HeadRows(NamedTuple):
    """Query heads of rows of tokens (T, H, E) and their signatures (T, H)."""

    x: arrays.F32_3D
    out: arrays.U64_2D
    encoder: Encoder


class Query(NamedTuple):
    """Signatures of the queries (J, G), what they choose from, and the lists they fill.

    taken: see `Range`; (J, 0) where only those outside the range are.
    """

    queries: arrays.U64_2D
    items: arrays.I64_1D
    taken: arrays.U64_2D
    lists: arrays.U32_2D
    counts: arrays.I64_1D


class Scratch(NamedTuple):
    """Of each thread."""

    tables: arrays.U8_4D
    """Of pairs of queries, see `pairs`."""
    limits: arrays.U8_3D
    """int8 [query][pattern][64]: a token that is nearer is a candidate, see `lots`."""
    planes: arrays.U8_2D
    masks: arrays.U64_4D
    """[buffer][query][word]"""
    tally: arrays.I64_3D
    """[limit of costs, candidates][query]"""
    order: arrays.I64_2D
    entries: arrays.U64_3D
    spare: arrays.U64_3D
    marks: arrays.U64_2D
    histogram: arrays.I64_2D


class RowQueries(NamedTuple):
    """Signatures of many rows' queries (R, J, G), what they choose from, the lists they fill."""

    queries: arrays.U64_3D
    items: arrays.I64_1D
    lists: arrays.U32_3D
    """[row][KV head][room]"""
    counts: arrays.I64_2D


class RowScratch(NamedTuple):
    """Of each thread, for the rows of a block; a pass is some queries of one row (`Scratch`)."""

    queries: arrays.U64_3D
    """(threads, rows, G)"""
    none_taken: arrays.U64_2D
    """(threads, 0): see `Query`."""
    tables: arrays.U8_5D
    """[pass] of those of `Scratch`, as are limits, tally and entries."""
    limits: arrays.U8_4D
    planes: arrays.U8_2D
    """Of a segment."""
    sample: arrays.U8_2D
    """Signatures of a sample."""
    sample_planes: arrays.U8_2D
    masks: arrays.U64_4D
    places: arrays.U32_2D
    """Tokens of the masks of a pass."""
    lots: arrays.U8_2D
    """Of a segment's tokens."""
    ends: arrays.I64_2D
    """[query of a pass]: where its next candidate goes."""
    tally: arrays.I64_4D
    order: arrays.I64_2D
    entries: arrays.U64_4D
    spare: arrays.U64_3D
    marks: arrays.U64_2D
    histogram: arrays.I64_2D


class Tally(NamedTuple):
    """The `counts` candidates of each query are tokens that cost less than `below`."""

    below: arrays.I64_1D
    counts: arrays.I64_1D
