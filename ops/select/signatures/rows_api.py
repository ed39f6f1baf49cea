"""The checking wrapper of choices by signatures for many rows of queries, and its scratch."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT
from ...errors import OpsError
from ..choice import I64, Range
from ..work import HISTOGRAM, LIMIT_BYTES, ROWS, SAMPLE_SEGMENTS
from .arguments import RowQueries, RowScratch

U64 = NDArray[np.uint64]


@lazy_kernels
def _rows(bits: int, together: int) -> DefinedKernel:
    from .rows import make_rows

    return make_rows(bits, together)


class RowSignatureScratch:
    """Memory for `nearest_rows`: up to k tokens a query head of up to n_ctx, for each thread.

    For each query of 32 rows of a KV head about 2 k + 2,048 candidates of 8 bytes.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int) -> None:
        group = n_heads // n_kv_heads
        self.together = next(n for n in (4, 3, 2, 1) if group % n == 0)
        self.n_kv_heads, self.group, self.n_ctx, self.k = n_kv_heads, group, n_ctx, k
        self.n_segments = -(-n_ctx // SEGMENT)
        self.words = -(-n_ctx // 4096) * 64  # of marks: 64 of them are read at a time
        self.query, self.arguments = Arguments(RowQueries), Arguments(RowScratch)
        self.threads = 0

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads > self.threads:
            self.allocate(threads)
            self.threads = threads

    def allocate(self, threads: int) -> None:
        """Allocate it anew."""
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
        self.arguments.fill(self.arrays)


def nearest_rows(
    queries: U64,
    items: I64,
    bits: int,
    among: Range,
    k: int,
    lists: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
    scratch: RowSignatureScratch,
) -> None:
    """For each row of queries, what `nearest` chooses for it of tokens first .. last-1 of `among`.

    queries uint64 (R, J, G); items: addresses of a column's segments. Writes counts[r, j]
    positions, ascending, to lists[r, j]: uint32 (R, J, room), int64 (R, J); the tokens before first
    and from last on are not listed. The same for any number of threads.
    """
    s, given = scratch, RowQueries(queries=queries, items=items, lists=lists, counts=counts)
    check_rows("nearest signatures of rows", given, bits, among, k, s)
    s.ready(n_threads())
    choose = _rows(bits, s.together)
    choose(s.query.fill(given), s.arguments.address, *among, k, seed)


def check_rows(
    name: str, given: RowQueries, bits: int, among: Range, k: int, s: RowSignatureScratch
) -> None:
    """Raise OpsError unless these fit each other and the scratch."""
    (first, last, _), queries, (n_rows, *_) = among, given.queries, given.queries.shape
    shape = n_rows, s.n_kv_heads, s.group
    if queries.shape != shape or queries.dtype != np.uint64 or not queries.flags.c_contiguous:
        raise OpsError(
            f"{name}: queries are {queries.dtype} {queries.shape}, expected contiguous uint64 "
            f"{shape}"
        )
    if not 0 <= first < last <= min(s.n_ctx, SEGMENT * len(given.items)) or bits not in (32, 64):
        raise OpsError(
            f"{name}: {bits} bits of tokens {first} to {last - 1} in a context of {s.n_ctx}"
        )
    if not 1 <= k <= min(s.k, last - first):
        raise OpsError(
            f"{name}: cannot choose {k} of {last - first} tokens, expected 1 to "
            f"{min(s.k, last - first)}"
        )
    lists, counts, room = given.lists, given.counts, min(k * s.group, last - first)
    if lists.shape[:2] != shape[:2] or lists.shape[2] < room or counts.shape != shape[:2]:
        raise OpsError(
            f"{name}: lists are {lists.shape} with {counts.shape} lengths, expected "
            f"{(*shape[:2], room)} or more with {shape[:2]}"
        )
