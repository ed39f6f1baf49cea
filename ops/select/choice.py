"""What every choice of tokens takes: the range it is made from, its scratch, its lists."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch.arguments import F32_2D, I64_2D, U64_2D, U64_3D
from ..attention.layout import SEGMENT
from ..errors import OpsError
from .work import HISTOGRAM

I64 = NDArray[np.int64]


class Candidates(NamedTuple):
    """The best of a stream of tokens, gathered for the queries of one KV head; of each thread.

    limits: scores that are worth collecting, of each query; entries: see `best`; counts: how many
    entries a query has; marks: a bit for each token that was chosen. The rest is scratch of `best`.
    """

    limits: F32_2D
    entries: U64_3D
    counts: I64_2D
    spare: U64_3D
    histogram: I64_2D
    marks: U64_2D


class SelectScratch:
    """Memory for choosing up to k tokens a query head of up to n_ctx, for each thread.

    `together`: query heads of a group that share one pass over the index, at most 4.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int) -> None:
        group = n_heads // n_kv_heads
        self.together = next(n for n in (4, 3, 2, 1) if group % n == 0)
        self.n_kv_heads, self.group, self.n_ctx, self.k = n_kv_heads, group, n_ctx, k
        self.threads = 0

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads > self.threads:
            n, room = self.together, 2 * self.k + 4 * SEGMENT
            even = n + n % 2  # the pairs of queries that are compared together
            self.limits = aligned((threads, even, 64), np.uint8)
            self.masks = aligned((threads, 2, even, 16), np.uint64)
            self.entries = np.empty((threads, n, room), np.uint64)
            self.spare = np.empty((threads, 2, room), np.uint64)
            self.seen = np.zeros((threads, n), np.int64)
            self.orders = np.zeros((threads, -(-self.n_ctx // SEGMENT) + 1), np.int64)
            # A bit for each token, of which 64 words are looked at together.
            self.marks = np.zeros((threads, -(-self.n_ctx // 4096) * 64), np.uint64)
            self.histograms = np.zeros((threads, HISTOGRAM), np.int64)
            self.threads = threads

    def candidates(self, limits: NDArray[np.float32]) -> Candidates:
        """The buffers as kernels see them; limits float32 (threads, queries)."""
        return Candidates(
            limits=limits,
            entries=self.entries,
            counts=self.seen,
            spare=self.spare,
            histogram=self.histograms,
            marks=self.marks,
        )


class Range(NamedTuple):
    """What to choose from: tokens first .. last-1 compete, all others below stop are taken."""

    first: int
    last: int
    stop: int


def check_choice(
    name: str, among: Range, k: int, index: NDArray[np.uint32], counts: I64, s: SelectScratch
) -> None:
    """Raise OpsError unless k of the range fit the lists and the scratch."""
    if not 0 <= among.first < among.last <= among.stop <= s.n_ctx:
        raise OpsError(f"{name}: {among} does not fit a context of {s.n_ctx} tokens")
    if not 1 <= k <= min(s.k, among.last - among.first):
        found = min(s.k, among.last - among.first)
        raise OpsError(f"{name}: cannot choose {k} tokens, expected 1 to {found}")
    fixed = among.first + among.stop - among.last
    longest = fixed + min(k * s.group, among.last - among.first)
    if index.shape[0] != s.n_kv_heads or index.shape[1] < longest or index.dtype != np.uint32:
        raise OpsError(
            f"{name}: lists are {index.dtype} {index.shape}, expected uint32 "
            f"({s.n_kv_heads}, {longest} or more)"
        )
    if counts.shape != (s.n_kv_heads,) or counts.dtype != np.int64:
        raise OpsError(f"{name}: counts are {counts.dtype} {counts.shape}")
