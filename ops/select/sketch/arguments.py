"""What the kernels for sketches work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays
from ...attention.layout import StoredLayout
from ..choice import Candidates
from ..rerank.arguments import Products


class KeySums(NamedTuple):
    """Stored keys, and their sums of each segment; segments: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    sums: arrays.F32_3D
    """[segment][kv head][padded]"""
    works: arrays.F32_2D
    """Of each thread: a key."""


class Keys(NamedTuple):
    """Stored keys, and where their sketches go. segments, bits, factors: addresses."""

    segments: arrays.I64_1D
    layout: StoredLayout
    bits: arrays.I64_1D
    factors: arrays.I64_1D
    centre: arrays.F32_2D
    """[kv head][bits]: what is taken off the keys, padded with zeros."""
    rotation: arrays.F32_1D
    works: arrays.F32_2D
    """Of each thread: a key and its rotation."""


class KeysInSlots(NamedTuple):
    """The same, and the slots (J, T or more) that tokens have taken in each KV head."""

    keys: Keys
    slots: arrays.I32_2D


class Query(NamedTuple):
    """One token's query heads (1, H, E), what they choose from, and the lists they fill.

    taken: see `Range`; (J, 0) where only those outside the range are.
    """

    q: arrays.F32_3D
    segments: arrays.I64_1D
    bits: arrays.I64_1D
    factors: arrays.I64_1D
    rotation: arrays.F32_1D
    taken: arrays.U64_2D
    lists: arrays.U32_2D
    counts: arrays.I64_1D


class Search(NamedTuple):
    """Scratch of a choice by estimates (`choose`), with blocks or without; of each thread."""

    products: Products
    rotated: arrays.F32_3D
    """A query head, and its rotation."""
    tables: arrays.I8_4D
    """[query][half byte][16]: sums of signs, see `queries`."""
    order: arrays.I64_2D
    """Segments, in the order in which they are scanned."""
    found: Candidates
    chosen: arrays.U64_2D
    """Marks of all passes of a KV head's queries."""
    listed: arrays.U32_2D
    """The candidates of one pass."""


class Scan(NamedTuple):
    """What a scan of sketches writes, for two segments alternately; of each thread."""

    limits: arrays.U8_3D
    """int8 [query][64]: the least sums that can reach a query's limit, less one."""
    masks: arrays.U64_4D
    """[buffer][query][word]: tokens whose sums do."""
    sums: arrays.I8_4D
    """[buffer][query][token]"""


class Scratch(NamedTuple):
    """Of each thread."""

    search: Search
    scan: Scan


class RowQueries(NamedTuple):
    """Query heads of rows of tokens (R, H, E), what they choose from, and the lists they fill."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    bits: arrays.I64_1D
    factors: arrays.I64_1D
    rotation: arrays.F32_1D
    lists: arrays.U32_3D
    """[row][KV head][room]"""
    counts: arrays.I64_2D


class Spread(NamedTuple):
    """What a scan for many queries reads of a segment's sketches; of each thread and segment."""

    planes: arrays.U8_3D
    """Of each 128 tokens: [half byte of the bits][token]."""
    classes: arrays.U8_3D
    """[token]: of its factor, see `sums`."""
    factors: arrays.F32_3D


class RowScratch(NamedTuple):
    """Of each thread, for the rows of a block; a query is one head of one row."""

    products: Products
    rotated: arrays.F32_3D
    tables: arrays.I8_4D
    """[query] of those of `Search`, as are limits, entries and counts of `Candidates`."""
    limits: arrays.F32_2D
    entries: arrays.U64_3D
    counts: arrays.I64_2D
    floors: arrays.F32_2D
    """[query]: what all candidates reach."""
    passes: arrays.I64_2D
    """The first query of each pass that is to be scanned."""
    order: arrays.I64_2D
    sample: arrays.U8_2D
    """A sample of sketches: their bits, then their factors."""
    spread: Spread
    """Of a segment, or of all segments of the sample."""
    scan: Scan
    places: arrays.U32_2D
    scores: arrays.F32_4D
    """[1,024 tokens][query of a pass][token]"""
    guesses: arrays.F32_2D
    """[query head of a KV head]: the exact product that was needed in the row before."""
    listed: arrays.U32_2D
    """The candidates of a pass."""
    taken: arrays.U64_2D
    """Those of them whose exact products reach a limit, as entries of `best`."""
    spare: arrays.U64_3D
    histogram: arrays.I64_2D
    marks: arrays.U64_2D
    chosen: arrays.U64_2D
