"""What every choice of tokens takes: the range it is made from, its scratch, its lists."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch.arguments import F32_2D, I64_2D, U64_2D, U64_3D
from ..attention.layout import SEGMENT
from ..errors import OpsError
from .work import HISTOGRAM

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


class Candidates(NamedTuple):
    """The candidates of the query heads that share a pass; of each thread.

    limits: the score that makes a token a candidate, of each query; entries: see `best`; counts:
    how many entries a query has; marks: a bit for each token that was chosen. The rest is scratch
    of `best`.
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
        self.none_taken: U64 = np.zeros((n_kv_heads, 0), np.uint64)

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads > self.threads:
            self.allocate(threads)
            self.threads = threads

    def allocate(self, threads: int) -> None:
        """Allocate it anew."""
        n, room = self.together, 2 * self.k + 4 * SEGMENT
        even = n + n % 2  # the pairs of queries that are compared together
        self.masks = aligned((threads, 2, even, 16), np.uint64)
        self.order = np.zeros((threads, -(-self.n_ctx // SEGMENT) + 1), np.int64)
        self.found = Candidates(
            limits=np.empty((threads, n), np.float32),
            entries=np.empty((threads, n, room), np.uint64),
            counts=np.zeros((threads, n), np.int64),
            spare=np.empty((threads, 2, room), np.uint64),
            histogram=np.zeros((threads, HISTOGRAM), np.int64),
            # 64 words, of 64 tokens each, are read at a time.
            marks=np.zeros((threads, -(-self.n_ctx // 4096) * 64), np.uint64),
        )


class Range(NamedTuple):
    """What to choose from: tokens first .. last-1 compete, all others below stop are taken.

    Where a cache holds tokens in no order, some of first .. last-1 are taken, too, others in each
    KV head: `taken` uint64 (J, words), of `taken_words`, has a bit for each token.
    """

    first: int
    last: int
    stop: int


class Lists(NamedTuple):
    """What a choice fills: the first counts[j] of tokens[j] are those of KV head j, ascending.

    tokens: uint32 (J, room); counts: int64 (J,).
    """

    tokens: NDArray[np.uint32]
    counts: I64


def taken_words(n_tokens: int) -> int:
    """Words of 64 bits, whole segments of them, that have a bit for each of `n_tokens`."""
    return -(-n_tokens // SEGMENT) * (SEGMENT // 64)


def check_choice(
    name: str,
    among: Range,
    k: int,
    lists: Lists,
    taken: U64,
    s: SelectScratch,
) -> None:
    """Raise OpsError unless k of the range, beside those taken, fit the lists and the scratch."""
    if not 0 <= among.first < among.last <= among.stop <= s.n_ctx:
        raise OpsError(f"{name}: {among} does not fit a context of {s.n_ctx} tokens")
    n_taken = most_taken(name, among, taken, s)
    competing = among.last - among.first - n_taken
    most = min(s.k, competing)
    if not 1 <= k <= most:
        raise OpsError(f"{name}: cannot choose {k} tokens, expected 1 to {most}")
    fixed = among.first + among.stop - among.last + n_taken
    longest, (index, counts) = fixed + min(k * s.group, competing), lists
    if index.shape[0] != s.n_kv_heads or index.shape[1] < longest or index.dtype != np.uint32:
        raise OpsError(
            f"{name}: lists are {index.dtype} {index.shape}, expected uint32 "
            f"({s.n_kv_heads}, {longest} or more)"
        )
    if counts.shape != (s.n_kv_heads,) or counts.dtype != np.int64:
        raise OpsError(
            f"{name}: counts are {counts.dtype} {counts.shape}, expected int64 ({s.n_kv_heads},)"
        )


def most_taken(name: str, among: Range, taken: U64, s: SelectScratch) -> int:
    """The most bits of `taken` in any KV head. Raises OpsError for too few words."""
    if not taken.size:
        return 0
    words = taken_words(among.stop)
    if len(taken) != s.n_kv_heads or taken.shape[1] < words or taken.dtype != np.uint64:
        raise OpsError(
            f"{name}: what is taken is {taken.dtype} {taken.shape}, expected uint64 "
            f"({s.n_kv_heads}, {words} or more)"
        )
    return int(np.bitwise_count(taken[:, : -(-among.stop // 64)]).sum(1).max())


def check_query(name: str, q: F32, s: SelectScratch, head_dim: int) -> None:
    """Raise OpsError unless q holds one token's query heads."""
    shape = 1, s.n_kv_heads * s.group, head_dim
    if q.shape != shape or q.dtype != np.float32 or not q.flags.c_contiguous:
        raise OpsError(f"{name}: q is {q.dtype} {q.shape}, expected contiguous float32 {shape}")


def check_slots(name: str, slots: NDArray[np.int32], n_tokens: int, room: int) -> None:
    """Raise OpsError unless each KV head's first n_tokens slots lie within `room`."""
    if not 1 <= n_tokens <= slots.shape[1] or slots.dtype != np.int32:
        raise OpsError(
            f"{name}: {n_tokens} slots of {slots.dtype} {slots.shape}, expected int32 (KV heads, "
            f"{n_tokens} or more)"
        )
    named = slots[:, :n_tokens]
    if named.min() < 0 or named.max() >= room:
        raise OpsError(
            f"{name}: slots {named.min()} to {named.max()} lie outside the {room} reserved"
        )


def check_stored(name: str, first: int, last: int, stored: int) -> None:
    """Raise OpsError unless first .. last-1 are stored; name: what is indexed, and what it is."""
    if not 0 <= first <= last <= stored:
        raise OpsError(f"{name} {first} to {last - 1} lie outside the {stored} stored")
