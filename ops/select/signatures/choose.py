"""The checking wrappers of choices by signatures, for one token and for many rows.

`nearest` takes the nearest by Hamming distance, `best_signed` the best by exact products among some
times as many.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...arrays import F32, I64, U64
from ...attention.layout import SEGMENT
from ...errors import OpsError
from ..choice import (
    ChoiceScratch,
    KeyScratch,
    Lists,
    Range,
    RowLists,
    SelectScratch,
    Wanted,
    check_choice,
    check_columns,
    check_query,
    check_row_choice,
    fit_candidates,
)
from ..work import HISTOGRAM, LIMIT_BYTES, PLANE_BYTES, ROWS, SAMPLE_SEGMENTS
from .arguments import (
    Query,
    RowQueries,
    RowScratch,
    ScoredQuery,
    ScoredRows,
    ScoredRowScratch,
    ScoredScratch,
    Scratch,
    SignedKeys,
)

_SERIAL_SIGNATURES = 32_768  # to compare with 4 queries that cost less than waking the threads

U32 = NDArray[np.uint32]


@lazy_kernels
def _hamming(bits: int, together: int) -> DefinedKernel:
    from .hamming import make_hamming

    return make_hamming(bits, together)


@lazy_kernels
def _rows(bits: int, together: int) -> DefinedKernel:
    from .rows import make_rows

    return make_rows(bits, together)


@lazy_kernels
def _reranked(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .reranked import make_reranked

    return make_reranked(k_type, v_type, blocks, bits, together)


@lazy_kernels
def _reranked_rows(
    k_type: int, v_type: int, blocks: int, bits: int, together: int
) -> DefinedKernel:
    from .reranked import make_reranked_rows

    return make_reranked_rows(k_type, v_type, blocks, bits, together)


class SignedQueries(NamedTuple):
    """Query heads of R rows and their signatures: float32 (R, H, E), uint64 (R, J, G)."""

    q: F32
    signatures: U64


class SignatureScratch(SelectScratch):
    """Memory for `nearest`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        candidates = self.candidates
        self.arrays = Scratch(
            tables=aligned((threads, self.together, 16, 16), np.uint8),
            limits=aligned((threads, self.masks.shape[2], LIMIT_BYTES), np.uint8),
            planes=aligned((threads, PLANE_BYTES), np.uint8),
            masks=self.masks,
            tally=aligned((threads, 2, 8), np.int64),  # each in cache lines of its own
            order=self.order,
            entries=candidates.entries,
            spare=candidates.spare,
            marks=candidates.marks,
            histogram=candidates.histogram,
        )
        self.query, self.arguments = Arguments(Query), Arguments.fixed(self.arrays)


def nearest(
    queries: U64,
    items: I64,
    bits: int,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: U64 | None = None,
    scratch: SignatureScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k nearest of each query head of a KV head.

    Distance: the set bits of signature xor query; `lots` break ties. queries uint64 (J, G); items:
    addresses of a column's segments. taken: see `Range`; None: only those outside the range are.
    The same for any number of threads.
    """
    s, name, k = scratch, "nearest signatures", wanted.k
    taken = s.none_taken if taken is None else taken
    check_choice(name, among, k, lists, taken, s)
    _check_signed(name, queries, bits, s)
    s.ready(n_threads())
    parallel = (among.last - among.first) * s.n_kv_heads > _SERIAL_SIGNATURES
    query, choose = Query(queries, items, taken, lists), _hamming(bits, s.together)
    choose(s.query.fill(query), s.arguments.address, *among, k, wanted.seed, parallel=parallel)


class RowSignatureScratch(ChoiceScratch):
    """Memory for `nearest_rows`.

    For each query of 32 rows of a KV head about 2 k + 2,048 candidates of 8 bytes.
    """

    def allocate(self, threads: int) -> None:
        n, room = self.together, 2 * self.k + 2 * SEGMENT
        pairs, passes = -(-n // 2), ROWS * self.group // n
        self.arrays = RowScratch(
            queries=np.empty((threads, ROWS, self.group), np.uint64),
            none_taken=np.zeros((threads, 0), np.uint64),
            tables=aligned((threads, passes, pairs, 16, 16), np.uint8),
            limits=aligned((threads, passes, 2 * pairs, LIMIT_BYTES), np.uint8),
            planes=aligned((threads, 16 * SEGMENT), np.uint8),
            sample=aligned((threads, 8 * SAMPLE_SEGMENTS * SEGMENT), np.uint8),
            sample_planes=aligned((threads, 16 * SAMPLE_SEGMENTS * SEGMENT), np.uint8),
            masks=aligned((threads, 2, 2 * pairs, 16), np.uint64),
            places=np.empty((threads, n * SEGMENT + 4), np.uint32),
            lots=aligned((threads, SEGMENT), np.uint8),
            ends=aligned((threads, 8), np.int64),
            tally=aligned((threads, passes, 2, 8), np.int64),
            order=np.zeros((threads, self.n_segments + 1), np.int64),
            entries=np.empty((threads, passes, n, room), np.uint64),
            spare=np.empty((threads, 2, room), np.uint64),
            marks=np.zeros((threads, self.words), np.uint64),
            histogram=np.zeros((threads, HISTOGRAM), np.int64),
        )
        self.query, self.arguments = Arguments(RowQueries), Arguments.fixed(self.arrays)


def nearest_rows(
    queries: U64,
    items: I64,
    bits: int,
    among: Range,
    wanted: Wanted,
    lists: U32,
    counts: I64,
    *,
    scratch: RowSignatureScratch,
) -> None:
    """For each row of queries, what `nearest` chooses for it of tokens first .. last-1 of `among`.

    queries uint64 (R, J, G); items: addresses of a column's segments. Writes counts[r, j]
    positions, ascending, to lists[r, j]: uint32 (R, J, room), int64 (R, J); the tokens before first
    and from last on are not listed. The same for any number of threads.
    """
    s, name, row_lists = scratch, "nearest signatures of rows", RowLists(lists, counts)
    check_row_choice(name, among, wanted.k, row_lists, len(queries), s)
    _check_signed(name, queries, bits, s)
    check_columns(name, among.last, items)
    s.ready(n_threads())
    rows, choose = RowQueries(queries, items, row_lists), _rows(bits, s.together)
    choose(s.query.fill(rows), s.arguments.address, *among, wanted.k, wanted.seed)


class RerankedScratch(KeyScratch, SignatureScratch):
    """Memory for `best_signed`. k: the most candidates a query head may have."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        self.scored_query = Arguments(ScoredQuery)
        self.scored = Arguments.fixed(ScoredScratch(self.arrays, self.rerank(threads)))


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
    s, name, signatures = scratch, "best of the nearest signatures", queries.signatures[0]
    taken = s.none_taken if taken is None else taken
    competing = check_choice(name, among, wanted.k, lists, taken, s)
    wanted = fit_candidates(name, wanted, competing, s)
    check_query(name, queries.q, s, s.layout.head_dim)
    _check_signed(name, signatures, keys.bits, s)
    check_columns(name, among.stop, keys.segments, keys.items)
    s.ready(n_threads())
    signed = Query(signatures, keys.items, taken, lists)
    query = s.scored_query.fill(ScoredQuery(queries.q, keys.segments, signed))
    choose = _reranked(*s.layout.codes, keys.bits, s.together)
    choose(query, s.scored.address, *among, *wanted)


class RowRerankedScratch(KeyScratch, RowSignatureScratch):
    """Memory for `best_signed_rows`. k: the most candidates a query head may have."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        self.scored_rows = Arguments(ScoredRows)
        self.scored = Arguments.fixed(ScoredRowScratch(self.arrays, self.rerank(threads)))


def best_signed_rows(
    queries: SignedQueries,
    keys: SignedKeys,
    among: Range,
    wanted: Wanted,
    lists: U32,
    counts: I64,
    *,
    scratch: RowRerankedScratch,
) -> None:
    """For each row, what `best_signed` chooses for it of tokens first .. last-1 of `among`.

    Writes counts[r, j] positions, ascending, to lists[r, j]: uint32 (R, J, room), int64 (R, J); the
    tokens before first and from last on are not listed. The same for any number of threads.
    """
    s, name, (q, signatures) = scratch, "best of the nearest signatures of rows", queries
    row_lists = RowLists(lists, counts)
    competing = check_row_choice(name, among, wanted.k, row_lists, len(q), s)
    wanted = fit_candidates(name, wanted, competing, s)
    check_query(name, q, s, s.layout.head_dim, len(signatures))
    _check_signed(name, signatures, keys.bits, s)
    check_columns(name, among.stop, keys.segments, keys.items)
    s.ready(n_threads())
    signed = RowQueries(signatures, keys.items, row_lists)
    rows = s.scored_rows.fill(ScoredRows(q, keys.segments, signed))
    choose = _reranked_rows(*s.layout.codes, keys.bits, s.together)
    choose(rows, s.scored.address, *among, *wanted)


def _check_signed(name: str, signatures: U64, bits: int, s: ChoiceScratch) -> None:
    """Raise OpsError unless these are signatures of queries (…, J, G), and of a known size."""
    shape = s.n_kv_heads, s.group
    contiguous = signatures.flags.c_contiguous
    if signatures.shape[-2:] != shape or signatures.dtype != np.uint64 or not contiguous:
        raise OpsError(
            f"{name}: queries are {signatures.dtype} {signatures.shape}, expected contiguous "
            f"uint64 {shape} of each token"
        )
    if bits not in (32, 64):
        raise OpsError(f"{name}: {bits} bits, expected 32 or 64")
