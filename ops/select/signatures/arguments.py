"""What the kernels for signatures work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch.arguments import (
    F32_1D,
    F32_2D,
    I64_1D,
    I64_2D,
    I64_3D,
    U8_2D,
    U8_3D,
    U8_4D,
    U32_2D,
    U64_1D,
    U64_2D,
    U64_3D,
    U64_4D,
)
from ...attention.layout import StoredLayout


class Encoder(NamedTuple):
    """A network: weights of its layers, and their widths. works: scratch of each thread."""

    weights: F32_1D
    widths: I64_1D
    works: F32_2D


class Keys(NamedTuple):
    """Stored keys, and where their signatures go. segments, items: addresses."""

    segments: I64_1D
    layout: StoredLayout
    items: I64_1D
    encoder: Encoder


class Rows(NamedTuple):
    """Vectors (n, E) and their signatures."""

    x: F32_2D
    out: U64_1D
    encoder: Encoder


class Query(NamedTuple):
    """Signatures of the queries (J, G), what they choose from, and the lists they fill."""

    queries: U64_2D
    items: I64_1D
    lists: U32_2D
    counts: I64_1D


class Scratch(NamedTuple):
    """Of each thread."""

    tables: U8_4D
    """Of pairs of queries, see `pairs`."""
    limits: U8_3D
    """int8 [query][64]: costs that are worth collecting are below."""
    planes: U8_2D
    masks: U64_4D
    """[turn][query][word]"""
    tally: I64_3D
    """[least cost, limit of costs, entries][query]"""
    order: I64_2D
    entries: U64_3D
    spare: U64_3D
    marks: U64_2D
    histogram: I64_2D


class Tally(NamedTuple):
    """What is collected of each query: entries that cost least .. below - 1; counts: so many."""

    least: I64_1D
    below: I64_1D
    counts: I64_1D
