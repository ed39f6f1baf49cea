"""The checking wrapper of choices by sketches for many rows of queries, and its scratch."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout
from ...errors import OpsError
from ..choice import F32, I64, Range
from ..rerank import Wanted, products_scratch
from ..work import HISTOGRAM, ROWS, SAMPLE_SEGMENTS
from .arguments import RowQueries, RowScratch, Scan, Spread
from .search import SketchedKeys, check_rotation, sketch_bits


@lazy_kernels
def _rows(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .rows import make_sketch_rows

    return make_sketch_rows(k_type, v_type, blocks, bits, together)


class RowSketchScratch:
    """Memory for `best_sketched_rows`, for each thread.

    k: the most candidates a query head may have. About 2 k + 2,048 entries of 8 bytes for each
    query of 32 rows of a KV head.
    """

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        group = n_heads // n_kv_heads
        self.together = next(n for n in (4, 3, 2, 1) if group % n == 0)
        self.n_kv_heads, self.group, self.n_ctx, self.k = n_kv_heads, group, n_ctx, k
        self.layout, self.bits = layout, sketch_bits(layout.head_dim)
        self.query, self.arguments = Arguments(RowQueries), Arguments(RowScratch)
        self.threads = 0

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads <= self.threads:
            return
        n, layout, bits = self.together, self.layout, self.bits
        queries, room = ROWS * self.group, 2 * self.k + 2 * SEGMENT
        listed = min(n * self.k, self.n_ctx)
        parts = max(-(-listed // SEGMENT), SAMPLE_SEGMENTS)
        # 64 words, of 64 tokens each, are read at a time.
        words = -(-self.n_ctx // 4096) * 64
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
            products=products_scratch(threads, self.group, layout),
            rotated=aligned((threads, 2, bits), np.float32),
            tables=aligned((threads, queries, bits // 4, 16), np.int8),
            limits=np.empty((threads, queries), np.float32),
            entries=np.empty((threads, queries, room), np.uint64),
            counts=np.zeros((threads, queries), np.int64),
            floors=np.empty((threads, queries), np.float32),
            passes=np.zeros((threads, queries // n + 1), np.int64),
            order=np.zeros((threads, -(-self.n_ctx // SEGMENT) + 1), np.int64),
            sample=aligned((threads, SAMPLE_SEGMENTS * SEGMENT * (bits // 8 + 2)), np.uint8),
            spread=spread,
            scan=scan,
            places=np.empty((threads, SEGMENT + 4), np.uint32),
            scores=aligned((threads, parts, n, SEGMENT), np.float32),
            guesses=np.empty((threads, self.group), np.float32),
            listed=np.empty((threads, listed + 4), np.uint32),
            taken=np.empty((threads, listed), np.uint64),
            spare=np.empty((threads, 2, max(room, listed) + 1), np.uint64),
            histogram=np.zeros((threads, HISTOGRAM), np.int64),
            marks=np.zeros((threads, words), np.uint64),
            chosen=np.zeros((threads, words), np.uint64),
        )
        self.arguments.fill(arrays)
        self.threads = threads


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
    s, (first, last, _) = scratch, among
    name, shape = "sketches of rows", (len(q), s.n_kv_heads * s.group, s.layout.head_dim)
    if q.shape != shape or q.dtype != np.float32 or not q.flags.c_contiguous:
        raise OpsError(f"{name}: q is {q.dtype} {q.shape}, expected contiguous float32 {shape}")
    room = SEGMENT * min(map(len, (keys.segments, keys.bits, keys.factors)))
    if not 0 <= first < last <= min(s.n_ctx, room):
        raise OpsError(f"{name}: tokens {first} to {last - 1} in a context of {s.n_ctx}")
    few = min(wanted.n_candidates, last - first)
    if not 1 <= wanted.k <= few <= s.k:
        raise OpsError(
            f"{name}: cannot choose {wanted.k} of {few} candidates, there is room for {s.k}"
        )
    check_rotation(name, keys.rotation, s.layout)
    rows, longest = (len(q), s.n_kv_heads), min(wanted.k * s.group, last - first)
    if lists.shape[:2] != rows or lists.shape[2] < longest or counts.shape != rows:
        raise OpsError(
            f"{name}: lists are {lists.shape} with {counts.shape} lengths, expected "
            f"{(*rows, longest)} or more with {rows}"
        )
    s.ready(n_threads())
    given = RowQueries(
        q=q,
        segments=keys.segments,
        bits=keys.bits,
        factors=keys.factors,
        rotation=keys.rotation.weights,
        lists=lists,
        counts=counts,
    )
    choose = _rows(*s.layout.codes, s.bits, s.together)
    choose(s.query.fill(given), s.arguments.address, *among, *wanted._replace(n_candidates=few))
