"""What the kernels work on. Imports no Numba."""

from typing import NamedTuple

from .....jit.launch import arguments as arrays
from ...choice import Candidates
from ...rerank.arguments import Products, RowRerank
from ..arguments import Query, RowQueries, RowScratch, Scratch


class ScoredQuery(NamedTuple):
    """One token's query heads (1, H, E), the addresses of the segments of K and V, the rest."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    signed: Query


class Search(NamedTuple):
    """Scratch of the choice among candidates; of each thread."""

    products: Products
    found: Candidates
    chosen: arrays.U64_2D
    """Marks of all passes of a KV head's queries."""
    listed: arrays.U32_2D
    """The candidates of one pass."""


class ScoredScratch(NamedTuple):
    """Of each thread; the scan's marks are those of `search.found`."""

    scan: Scratch
    search: Search


class ScoredRows(NamedTuple):
    """Query heads of rows of tokens (R, H, E); the rest as of one token."""

    q: arrays.F32_3D
    segments: arrays.I64_1D
    signed: RowQueries


class ScoredRowScratch(NamedTuple):
    """Of each thread, for the rows of a block."""

    scan: RowScratch
    rerank: RowRerank
