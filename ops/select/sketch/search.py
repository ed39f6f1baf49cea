"""The checking wrappers of choices by sketches, for one token and for many rows."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...arrays import F32, I64, U64
from ...attention.layout import SEGMENT, TileLayout
from ..choice import (
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
from ..work import ROWS, SAMPLE_SEGMENTS
from .arguments import (
    Query,
    RowQueries,
    RowScratch,
    Scan,
    Scratch,
    Search,
    SketchedKeys,
    Spread,
    sketch_bits,
)
from .index import check_frame, check_rotation


@lazy_kernels
def _sketched(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .choose import make_sketch

    return make_sketch(k_type, v_type, blocks, bits, together)


@lazy_kernels
def _rows(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .rows import make_sketch_rows

    return make_sketch_rows(k_type, v_type, blocks, bits, together)


class EstimateScratch(KeyScratch):
    """Memory for choices by estimates. k: the most candidates a query head may have."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k, layout)
        self.bits = sketch_bits(layout.head_dim)


class SketchScratch(EstimateScratch, SelectScratch):
    """Memory for `best_sketched`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        search = Search(
            rerank=self.rerank(threads),
            rotated=aligned((threads, 2, self.bits), np.float32),
            tables=np.empty((threads, self.together, self.bits // 4, 16), np.int8),
            order=self.order,
            candidates=self.candidates,
        )
        sums = aligned((threads, 2, self.together, SEGMENT), np.int8)
        limits = aligned((threads, self.masks.shape[2], 64), np.uint8)
        scan = Scan(limits=limits, masks=self.masks, sums=sums)
        self.arrays = Scratch(search=search, scan=scan)
        self.query, self.arguments = Arguments(Query), Arguments.fixed(self.arrays)


def best_sketched(
    q: F32,
    keys: SketchedKeys,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: U64 | None = None,
    scratch: SketchScratch,
) -> None:
    """Lists of tokens: the k largest q . key of each query head among candidates by estimates.

    Of `among`, the best `n_candidates` >= k estimates of each query head are candidates of all that
    share its pass (`together`), and each takes the k largest exact products; the union is the list.
    q float32 (1, H, E); the rest as `nearest`.
    """
    s, name = scratch, "sketches"
    taken = s.none_taken if taken is None else taken
    competing = check_choice(name, among, wanted.k, lists, taken, s)
    wanted = fit_candidates(name, wanted, competing, s)
    check_query(name, q, s, s.layout.head_dim)
    check_rotation(name, keys.rotation, s.layout)
    check_frame(name, keys.frame, s.n_kv_heads, s.bits)
    check_columns(name, among.stop, keys.segments, keys.bits, keys.factors)
    s.ready(n_threads())
    choose = _sketched(*s.layout.codes, s.bits, s.together)
    query = s.query.fill(Query(q, keys, taken, lists))
    choose(query, s.arguments.address, s.n_kv_heads, *among, *wanted)


class RowSketchScratch(EstimateScratch):
    """Memory for `best_sketched_rows`.

    About 2 k + 2,048 entries of 8 bytes for each query of 32 rows of a KV head.
    """

    def allocate(self, threads: int) -> None:
        n, bits, queries = self.together, self.bits, ROWS * self.group
        spread = Spread(
            planes=aligned((threads, SAMPLE_SEGMENTS, bits // 4 * SEGMENT), np.uint8),
            classes=aligned((threads, SAMPLE_SEGMENTS, SEGMENT), np.uint8),
            factors=aligned((threads, SAMPLE_SEGMENTS, SEGMENT), np.float32),
        )
        scan = Scan(
            limits=aligned((threads, n, 64), np.uint8),
            masks=aligned((threads, 2, n, 16), np.uint64),
            sums=aligned((threads, 2, n, SEGMENT), np.int8),
        )
        arrays = RowScratch(
            rerank=self.rerank(threads, scored=SAMPLE_SEGMENTS * SEGMENT),
            rotated=aligned((threads, 2, bits), np.float32),
            tables=aligned((threads, queries, bits // 4, 16), np.int8),
            limits=np.empty((threads, queries), np.float32),
            entries=np.empty((threads, queries, 2 * self.k + 2 * SEGMENT), np.uint64),
            counts=np.zeros((threads, queries), np.int64),
            floors=np.empty((threads, queries), np.float32),
            passes=np.zeros((threads, queries // n + 1), np.int64),
            order=np.zeros((threads, self.n_segments + 1), np.int64),
            sample=aligned((threads, SAMPLE_SEGMENTS * SEGMENT * (bits // 8 + 2)), np.uint8),
            spread=spread,
            scan=scan,
            places=np.empty((threads, SEGMENT + 4), np.uint32),
            marks=np.zeros((threads, self.words), np.uint64),
        )
        self.query, self.arguments = Arguments(RowQueries), Arguments.fixed(arrays)


def best_sketched_rows(
    q: F32,
    keys: SketchedKeys,
    among: Range,
    wanted: Wanted,
    lists: NDArray[np.uint32],
    counts: I64,
    *,
    scratch: RowSketchScratch,
) -> None:
    """For each row of q, what `best_sketched` chooses for it of tokens first .. last-1 of `among`.

    q float32 (R, H, E). Writes counts[r, j] positions, ascending, to lists[r, j]: uint32 (R, J,
    room), int64 (R, J); the tokens before first and from last on are not listed. The same for any
    number of threads.
    """
    s, name, row_lists = scratch, "sketches of rows", RowLists(lists, counts)
    competing = check_row_choice(name, among, wanted.k, row_lists, len(q), s)
    wanted = fit_candidates(name, wanted, competing, s)
    check_query(name, q, s, s.layout.head_dim, len(q))
    check_rotation(name, keys.rotation, s.layout)
    check_frame(name, keys.frame, s.n_kv_heads, s.bits)
    check_columns(name, among.last, keys.segments, keys.bits, keys.factors)
    s.ready(n_threads())
    choose = _rows(*s.layout.codes, s.bits, s.together)
    rows = s.query.fill(RowQueries(q, keys, row_lists))
    choose(rows, s.arguments.address, *among, *wanted)
