"""What choices of tokens share: ranges, lists, scratch of each thread, checks. Imports no Numba."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import arguments as arrays
from ..arrays import F32, U64
from ..attention.checks import check_floats
from ..attention.layout import SEGMENT, TileLayout
from ..attention.work import WORK_BYTES, gathered_work_bytes
from ..errors import OpsError
from .work import HISTOGRAM

IN_ORDER = np.empty((0, 0), np.int32)
"""No slots: tokens stand in order."""


class Range(NamedTuple):
    """The tokens of a choice: first .. last-1 compete, all others below stop are taken.

    Where a cache holds tokens in no order, some of first .. last-1 are taken, too, others in each
    KV head: `taken` uint64 (J, words), of `taken_words`, has a bit for each token.
    """

    first: int
    last: int
    stop: int


class Wanted(NamedTuple):
    """The k largest products of the best `n_candidates` estimates; seed: of the hash for ties."""

    k: int
    n_candidates: int
    seed: int


class Lists(NamedTuple):
    """What a choice fills: the first counts[j] of tokens[j] are those of KV head j, ascending."""

    tokens: arrays.U32_2D
    """(J, room)"""
    counts: arrays.I64_1D
    """(J,)"""


class RowLists(NamedTuple):
    """The same for R rows, without the tokens outside the range."""

    tokens: arrays.U32_3D
    """(R, J, room)"""
    counts: arrays.I64_2D
    """(R, J)"""


class Candidates(NamedTuple):
    """The candidates of the query heads that share a pass; of each thread."""

    limits: arrays.F32_2D
    """[query]: the score that makes a token a candidate."""
    entries: arrays.U64_3D
    """[query][candidate], see `best`."""
    counts: arrays.I64_2D
    """[query]: how many candidates it has."""
    spare: arrays.U64_3D
    """Scratch of `best`, as is the histogram."""
    histogram: arrays.I64_2D
    marks: arrays.U64_2D
    """A bit for each token that was chosen."""


class Rerank(NamedTuple):
    """Scratch of the choice by exact products among candidates; of each thread."""

    rows: arrays.F32_3D
    """The query heads of a KV head, laid out as its keys are."""
    gathered_works: arrays.U8_2D
    works: arrays.U8_2D
    scores: arrays.F32_4D
    """[1,024 tokens][query of a pass][token]"""
    guesses: arrays.F32_2D
    """[query head of a KV head]: the product that the row before needed; 0: unknown."""
    listed: arrays.U32_2D
    """The candidates of a pass."""
    entries: arrays.U64_2D
    """Those of them whose products reach a limit, see `best`."""
    spare: arrays.U64_3D
    histogram: arrays.I64_2D
    chosen: arrays.U64_2D
    """A bit for each token that any query head of the KV head chose."""


class ThreadScratch(ABC):
    """Memory that each thread has for itself."""

    threads = 0

    def ready(self, threads: int) -> None:
        """Have memory for each of `threads` threads."""
        if threads > self.threads:
            self.allocate(threads)
            self.threads = threads

    @abstractmethod
    def allocate(self, threads: int) -> None:
        """Allocate it anew."""


class ChoiceScratch(ThreadScratch):
    """Memory for choosing up to k tokens, or candidates, a query head of up to n_ctx tokens.

    `together`: query heads of a group that share one pass over the index, at most 4.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int) -> None:
        group = n_heads // n_kv_heads
        self.together = next(n for n in (4, 3, 2, 1) if group % n == 0)
        self.n_kv_heads, self.group, self.n_ctx, self.k = n_kv_heads, group, n_ctx, k
        self.n_segments = -(-n_ctx // SEGMENT)
        self.words = -(-n_ctx // 4096) * 64  # of marks: 64 words of 64 tokens are read at a time
        self.none_taken: U64 = np.zeros((n_kv_heads, 0), np.uint64)


class SelectScratch(ChoiceScratch):
    """Memory for choosing for one token."""

    def allocate(self, threads: int) -> None:
        """Allocate it anew."""
        n, room = self.together, 2 * self.k + 4 * SEGMENT
        even = n + n % 2  # the pairs of queries that are compared together
        self.masks = aligned((threads, 2, even, 16), np.uint64)
        self.order = np.zeros((threads, self.n_segments + 1), np.int64)
        self.candidates = Candidates(
            limits=np.empty((threads, n), np.float32),
            entries=np.empty((threads, n, room), np.uint64),
            counts=np.zeros((threads, n), np.int64),
            spare=np.empty((threads, 2, room), np.uint64),
            histogram=np.zeros((threads, HISTOGRAM), np.int64),
            marks=np.zeros((threads, self.words), np.uint64),
        )


class KeyScratch(ChoiceScratch):
    """Memory for choices that compute products with stored keys of one layout."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout = layout

    def rerank(self, threads: int, scored: int = 0) -> Rerank:
        """Memory for `mark_largest`. scored: tokens for which `scores` has room at least."""
        listed = min(self.together * self.k, self.n_ctx)
        parts = -(-max(listed, scored) // SEGMENT)
        room = max(listed, 2 * self.k + 2 * SEGMENT) + 1
        tile_bytes = self.layout.tile_bytes
        return Rerank(
            rows=aligned((threads, self.group, self.layout.padded), np.float32),
            gathered_works=aligned((threads, gathered_work_bytes(tile_bytes)), np.uint8),
            works=aligned((threads, WORK_BYTES), np.uint8),
            scores=aligned((threads, parts, self.together, SEGMENT), np.float32),
            guesses=np.empty((threads, self.group), np.float32),
            listed=np.empty((threads, listed + 4), np.uint32),
            entries=np.empty((threads, listed), np.uint64),
            spare=np.empty((threads, 2, room), np.uint64),
            histogram=np.zeros((threads, HISTOGRAM), np.int64),
            chosen=np.zeros((threads, self.words), np.uint64),
        )


def taken_words(n_tokens: int) -> int:
    """Return how many words of 64 bits, in whole segments, have a bit for each of `n_tokens`."""
    return -(-n_tokens // SEGMENT) * (SEGMENT // 64)


def check_choice(
    name: str, among: Range, k: int, lists: Lists, taken: U64, s: SelectScratch
) -> int:
    """Return how many tokens compete.

    Raises OpsError unless k of the range, beside those taken, fit the lists and the scratch.
    """
    if not 0 <= among.first < among.last <= among.stop <= s.n_ctx:
        raise OpsError(f"{name}: {among} does not fit a context of {s.n_ctx} tokens")
    n_taken = _most_taken(name, among, taken, s)
    competing = among.last - among.first - n_taken
    _check_k(name, k, competing, s)
    fixed = among.first + among.stop - among.last + n_taken
    check_lists(name, lists, (s.n_kv_heads,), fixed + min(k * s.group, competing))
    return competing


def check_row_choice(
    name: str, among: Range, k: int, lists: RowLists, n_rows: int, s: ChoiceScratch
) -> int:
    """Return how many tokens compete. Raises OpsError unless k fit the lists and the scratch."""
    if not 0 <= among.first < among.last <= s.n_ctx:
        raise OpsError(
            f"{name}: tokens {among.first} to {among.last - 1} in a context of {s.n_ctx}"
        )
    competing = among.last - among.first
    _check_k(name, k, competing, s)
    check_lists(name, lists, (n_rows, s.n_kv_heads), min(k * s.group, competing))
    return competing


def _check_k(name: str, k: int, competing: int, s: ChoiceScratch) -> None:
    most = min(s.k, competing)
    if not 1 <= k <= most:
        raise OpsError(f"{name}: cannot choose {k} tokens, expected 1 to {most}")


def check_lists(name: str, lists: Lists | RowLists, shape: tuple[int, ...], longest: int) -> None:
    """Raise OpsError unless there is a list of up to `longest` tokens for each of a shape."""
    tokens, counts = lists
    if tokens.shape[:-1] != shape or tokens.shape[-1] < longest or tokens.dtype != np.uint32:
        raise OpsError(
            f"{name}: lists are {tokens.dtype} {tokens.shape}, expected uint32 "
            f"({', '.join(map(str, shape))}, {longest} or more)"
        )
    if counts.shape != shape or counts.dtype != np.int64:
        raise OpsError(f"{name}: counts are {counts.dtype} {counts.shape}, expected int64 {shape}")


def _most_taken(name: str, among: Range, taken: U64, s: SelectScratch) -> int:
    """Return the most bits of `taken` in any KV head. Raises OpsError for too few words."""
    if not taken.size:
        return 0
    words = taken_words(among.stop)
    if len(taken) != s.n_kv_heads or taken.shape[1] < words or taken.dtype != np.uint64:
        raise OpsError(
            f"{name}: what is taken is {taken.dtype} {taken.shape}, expected uint64 "
            f"({s.n_kv_heads}, {words} or more)"
        )
    return int(np.bitwise_count(taken[:, : -(-among.stop // 64)]).sum(1).max())


def fit_candidates(name: str, wanted: Wanted, competing: int, s: ChoiceScratch) -> Wanted:
    """Return what is wanted, with no more candidates than tokens compete.

    Raises OpsError where these are fewer than k, or do not fit the scratch.
    """
    n = min(wanted.n_candidates, competing)
    if not 1 <= wanted.k <= n <= s.k:
        raise OpsError(
            f"{name}: cannot choose {wanted.k} of {n} candidates, there is room for {s.k}"
        )
    return wanted._replace(n_candidates=n)


def check_query(name: str, q: F32, s: ChoiceScratch, head_dim: int, n_rows: int = 1) -> None:
    """Raise OpsError unless q holds the query heads of so many tokens."""
    check_floats(f"{name}: q", q, (n_rows, s.n_kv_heads * s.group, head_dim))


def check_columns(name: str, stop: int, *columns: NDArray[Any]) -> None:
    """Raise OpsError unless all columns have the segments of tokens 0 .. stop-1."""
    room = SEGMENT * min(map(len, columns))
    if stop > room:
        raise OpsError(f"{name}: token {stop - 1} lies outside the columns of {room}")


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


def check_stored(name: str, first: int, stop: int, stored: int) -> None:
    """Raise OpsError unless items first .. stop-1 are stored; name: of the caller and the items."""
    if not 0 <= first <= stop <= stored:
        raise OpsError(f"{name} {first} to {stop - 1} lie outside the {stored} stored")
