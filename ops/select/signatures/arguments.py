"""What the kernels for signatures work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.layout import StoredLayout
from ..choice import Lists, Range, Rerank, RowLists


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
    slots: arrays.I32_2D
    """(J, T or more): the slots that tokens have taken in each KV head; (0, 0): tokens in order."""
    encoder: Encoder


class HeadRows(NamedTuple):
    """Query heads of rows of tokens (T, H, E) and their signatures (T, H)."""

    x: arrays.F32_3D
    out: arrays.U64_2D
    encoder: Encoder


class SignedKeys(NamedTuple):
    """Stored keys and their signatures: base addresses of the segments of K and V and of a column
    of bits / 8 bytes."""

    segments: arrays.I64_1D
    items: arrays.I64_1D
    bits: int


class Query(NamedTuple):
    """Signatures of one token's queries (J, G), what they choose from, and the lists they fill.

    taken: see `Range`; (J, 0) where only the tokens outside the range are taken.
    """

    signatures: arrays.U64_2D
    items: arrays.I64_1D
    taken: arrays.U64_2D
    lists: Lists


class Scratch(NamedTuple):
    """Of each thread, for the queries of a pass."""

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

    signatures: arrays.U64_3D
    items: arrays.I64_1D
    lists: RowLists


class RowScratch(NamedTuple):
    """Of each thread, for the rows of a block; a pass is some queries of one row."""

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


class ScoredQuery(NamedTuple):
    """One token's query heads (1, H, E), the addresses of the segments of K and V, the rest."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    signed: Query


class ScoredScratch(NamedTuple):
    """Of each thread."""

    scan: Scratch
    rerank: Rerank


class ScoredRows(NamedTuple):
    """Query heads of rows of tokens (R, H, E); the rest as of one token."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    signed: RowQueries


class ScoredRowScratch(NamedTuple):
    """Of each thread, for the rows of a block."""

    scan: RowScratch
    rerank: Rerank


class Head(NamedTuple):
    """The signatures of one KV head, and what a query chooses of them."""

    items: arrays.I64_1D
    offset: int
    """Of the KV head in a segment of the column."""
    among: Range
    taken: arrays.U64_1D
    k: int
    seed: int


class Tally(NamedTuple):
    """The `counts` candidates of each query are tokens that cost less than `below`."""

    below: arrays.I64_1D
    counts: arrays.I64_1D
