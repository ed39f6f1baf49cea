"""The checking wrapper of coverage, its scratch, and the sample that it estimates from."""

from typing import NamedTuple

import numpy as np

from kvarn.jit.arena import aligned
from kvarn.jit.launch import Arguments
from kvarn.jit.threads import n_threads
from kvarn.ops.arrays import F32, I64, U32
from kvarn.ops.attention.arguments import Scoring
from kvarn.ops.attention.layout import SEGMENT, TILE, TileLayout
from kvarn.ops.attention.work import WORK_BYTES, gathered_work_bytes
from kvarn.ops.errors import OpsError
from kvarn.ops.select import ExactScratch, products
from kvarn.ops.select.choice import Lists, Range, check_query
from kvarn.ops.select.work import DIGIT

from .arguments import Query, Scratch, Wanted

SAMPLE = 512
"""Tokens of a sample: what is left out is a few per cent of the mass, and known to a tenth."""
NO_TOTALS = np.empty((0, 2), np.float32)


def draw_sample(among: Range, seed: int) -> U32:
    """A token from each of `SAMPLE` strata of equal length, ascending; all if there are fewer.

    Each token of `among` is drawn with the same probability (its strata may draw it twice).
    """
    n = among.last - among.first
    if n <= SAMPLE:
        return np.arange(among.first, among.last, dtype=np.uint32)
    places = np.arange(SAMPLE) + np.random.default_rng((seed, among.stop)).random(SAMPLE)
    return (among.first + places * n / SAMPLE).astype(np.uint32)


class CoverScratch(ExactScratch):
    """Memory for `cover` of lists of up to `room` tokens."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, room: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, 1, layout)
        self.room = room

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        room, n = -(-self.room // TILE) * TILE, self.together
        arrays = Scratch(
            rows=self.rows,
            works=aligned((threads, WORK_BYTES), np.uint8),
            gathered_works=aligned(
                (threads, gathered_work_bytes(self.layout.tile_bytes)), np.uint8
            ),
            listed=aligned((threads, n, room), np.float32),
            sampled=aligned((threads, n, SAMPLE), np.float32),
            left=np.empty((threads, SAMPLE + 1), np.uint32),
            weights=aligned((threads, room), np.float32),
            entries=np.empty((threads, room), np.uint64),
            entries_spare=np.empty((threads, 2, room), np.uint64),
            masses=np.zeros((threads, 1 << DIGIT), np.float64),
            candidates=self.candidates,
        )
        self.cover_query, self.cover_arguments = Arguments(Query), Arguments.fixed(arrays)


def totals_of(q: F32, segments: I64, among: Range, scoring: Scoring, scratch: ExactScratch) -> F32:
    """Of each query head, the greatest score of the tokens of `among`, and their sum of
    exp(score - greatest): float32 (H, 2)."""
    out = np.empty((q.shape[1], among.last), np.float32)
    products(q, segments, among.last, out, scratch=scratch)
    scores = scoring.scale * out[:, among.first :]
    if scoring.softcap:
        scores = scoring.softcap * np.tanh(scores / scoring.softcap)
    top = scores.max(1)
    return np.stack([top, np.exp(scores - top[:, None]).sum(1)], 1).astype(np.float32)


class SoftmaxBudget(NamedTuple):
    """A share of the softmax, by at most k tokens a query head; seed: of the sample."""

    share: float
    k: int
    seed: int


def cover(
    q: F32,
    segments: I64,
    among: Range,
    most: SoftmaxBudget,
    lists: Lists,
    *,
    scoring: Scoring,
    scratch: CoverScratch,
    totals: F32 = NO_TOTALS,
) -> None:
    """Shorten lists of tokens to the fewest that hold a share of each query head's softmax.

    lists: sinks, window and tokens of `among`. Of these, each query head takes the best by exact
    score until, with sinks and window, they hold the share of its softmax over all tokens, at most
    k; the union is the new list. totals: see `totals_of`; without, what is not listed is estimated
    from `draw_sample`.
    """
    from .scan import make_cover

    s, (share, k, seed), (tokens, counts) = scratch, most, lists
    check_query("coverage", q, s, s.layout.head_dim)
    if not 0 <= among.first < among.last <= among.stop <= min(s.n_ctx, SEGMENT * len(segments)):
        raise OpsError(f"coverage: {among} does not fit a context of {s.n_ctx} tokens")
    if tokens.shape[0] != s.n_kv_heads or tokens.dtype != np.uint32 or counts.max() > s.room:
        raise OpsError(
            f"coverage: lists are {tokens.dtype} {tokens.shape} of up to {counts.max()} tokens, "
            f"expected uint32 ({s.n_kv_heads}, …) of up to {s.room}"
        )
    if not 0 < share <= 1:
        raise OpsError(f"coverage: the share is {share}, expected more than 0 and at most 1")
    if totals.size and totals.shape != (q.shape[1], 2):
        raise OpsError(f"coverage: totals are {totals.shape}, expected ({q.shape[1]}, 2)")
    s.ready(n_threads())
    sample = np.empty(0, np.uint32) if totals.size else draw_sample(among, seed)
    query = Query(q=q, segments=segments, lists=tokens, counts=counts, totals=totals, sample=sample)
    step = (among.last - among.first) / max(len(sample), 1)
    wanted = Wanted(share, *scoring, k, seed, step)
    shorten = make_cover(*s.layout.codes, s.together)
    shorten(s.cover_query.fill(query), s.cover_arguments.address, s.n_kv_heads, *among, *wanted)
