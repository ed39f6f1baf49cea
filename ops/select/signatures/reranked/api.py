"""The checking wrappers, and their scratch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .....jit.launch import Arguments, DefinedKernel, lazy_kernels
from .....jit.threads import n_threads
from ....attention.layout import SEGMENT, TileLayout
from ....errors import OpsError
from ...choice import F32, I64, U64, Lists, Range, check_choice, check_query, most_taken
from ...rerank import Wanted, products_scratch, row_rerank_scratch
from ..api import SignatureScratch, check_signed
from ..arguments import Query, RowQueries
from ..rows_api import RowSignatureScratch, check_rows
from .arguments import ScoredQuery, ScoredRows, ScoredRowScratch, ScoredScratch, Search


@lazy_kernels
def _reranked(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .single import make_reranked

    return make_reranked(k_type, v_type, blocks, bits, together)


@lazy_kernels
def _rows(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .rows import make_reranked_rows

    return make_reranked_rows(k_type, v_type, blocks, bits, together)


class SignedKeys(NamedTuple):
    """Stored keys and their signatures: base addresses of the segments of K and V and of a column
    of bits / 8 bytes."""

    segments: I64
    items: I64
    bits: int


class SignedQueries(NamedTuple):
    """Query heads of R rows and their signatures: float32 (R, H, E), uint64 (R, J, G)."""

    q: F32
    signatures: U64


class RerankedScratch(SignatureScratch):
    """Memory for `best_signed`. k: the most candidates a query head may have."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout = layout

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        search = Search(
            products=products_scratch(threads, self.group, self.layout),
            found=self.found,
            chosen=np.zeros_like(self.found.marks),
            listed=np.empty((threads, min(self.together * self.k, self.n_ctx) + 4), np.uint32),
        )
        self.scored_query = Arguments(ScoredQuery)
        self.scored = Arguments.fixed(ScoredScratch(self.arrays, search))


def best_signed(
    queries: SignedQueries,
    keys: SignedKeys,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: U64 | None = None,
    scratch: RerankedScratch,
) -> None:
    """Lists of tokens: the k largest q . key of each query head among the nearest signatures.

    Of `among`, the `n_candidates` >= k nearest of each query head (`nearest`) are candidates of all
    that share its pass (`together`), and each takes the k largest exact products; the union is the
    list. Of equal products, `position_hash` decides. The rest as `nearest`; queries of one row.
    """
    s, name = scratch, "best of the nearest signatures"
    taken = s.none_taken if taken is None else taken
    check_choice(name, among, wanted.k, lists, taken, s)
    check_query(name, queries.q, s, s.layout.head_dim)
    signatures = queries.signatures[0]
    check_signed(name, signatures, keys.bits, s)
    _check_keys(name, keys, among)
    competing = among.last - among.first - most_taken(name, among, taken, s)
    wanted = _fitting(name, wanted, competing, s.k)
    s.ready(n_threads())
    signed = Query(
        queries=signatures,
        items=keys.items,
        taken=taken,
        lists=lists.tokens,
        counts=lists.counts,
    )
    query = s.scored_query.fill(ScoredQuery(queries.q, keys.segments, signed))
    choose = _reranked(*s.layout.codes, keys.bits, s.together)
    choose(query, s.scored.address, *among, *wanted)


class RowRerankedScratch(RowSignatureScratch):
    """Memory for `best_signed_rows`. k: the most candidates a query head may have."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout = layout
        self.scored_query, self.scored = Arguments(ScoredRows), Arguments(ScoredRowScratch)

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        rerank = row_rerank_scratch(
            threads, self.group, self.together, self.n_ctx, self.k, self.layout
        )
        self.scored.fill(ScoredRowScratch(self.arrays, rerank))


def best_signed_rows(
    queries: SignedQueries,
    keys: SignedKeys,
    among: Range,
    wanted: Wanted,
    lists: NDArray[np.uint32],
    counts: I64,
    *,
    scratch: RowRerankedScratch,
) -> None:
    """For each row, what `best_signed` chooses for it of tokens first .. last-1 of `among`.

    Writes counts[r, j] positions, ascending, to lists[r, j]: uint32 (R, J, room), int64 (R, J); the
    tokens before first and from last on are not listed. The same for any number of threads.
    """
    s, name, q = scratch, "best of the nearest signatures of rows", queries.q
    wanted = _fitting(name, wanted, among.last - among.first, s.k)
    given = RowQueries(queries=queries.signatures, items=keys.items, lists=lists, counts=counts)
    check_rows(name, given, keys.bits, among, wanted.k, s)
    shape = len(queries.signatures), s.n_kv_heads * s.group, s.layout.head_dim
    if q.shape != shape or q.dtype != np.float32 or not q.flags.c_contiguous:
        raise OpsError(f"{name}: q is {q.dtype} {q.shape}, expected contiguous float32 {shape}")
    _check_keys(name, keys, among)
    s.ready(n_threads())
    choose = _rows(*s.layout.codes, keys.bits, s.together)
    query = s.scored_query.fill(ScoredRows(q, keys.segments, given))
    choose(query, s.scored.address, *among, *wanted)


def _check_keys(name: str, keys: SignedKeys, among: Range) -> None:
    if among.stop > SEGMENT * min(len(keys.segments), len(keys.items)):
        raise OpsError(f"{name}: token {among.stop - 1} lies outside the columns")


def _fitting(name: str, wanted: Wanted, competing: int, room: int) -> Wanted:
    """What is wanted, with no more candidates than tokens compete."""
    few = min(wanted.n_candidates, competing)
    if not 1 <= wanted.k <= few <= room:
        raise OpsError(
            f"{name}: cannot choose {wanted.k} of {few} candidates, there is room for {room}"
        )
    return wanted._replace(n_candidates=few)
