"""Exact products of candidates: of listed tokens, each query's k largest q . k."""

import numpy as np

from ...jit.cached import jit
from ...jit.launch.views import address
from ..attention.decode.scores import gathered_scores
from ..attention.layout import SEGMENT
from .narrow import limit_between, mark_k_best, take_at_least


@jit
def _score_listed(shape, segments, j, listed, rows, block):
    """Write the exact products of the queries `rows` of a pass with listed keys."""
    room, parts = address(block.gathered_works), address(block.works)
    for begin in range(0, len(listed), SEGMENT):
        tokens, s = listed[begin : begin + SEGMENT], address(block.scores[begin // SEGMENT])
        gathered_scores(shape, address(rows), tokens, segments, j, room, parts, s)
        for h in range(len(rows)):
            for t in range(len(tokens), (len(tokens) + 15) // 16 * 16):
                block.scores[begin // SEGMENT, h, t] = -np.inf


@jit
def mark_largest(shape, segments, j, listed, g, wanted, block):
    """Mark in `chosen` the k largest exact products of each query of a pass among listed tokens.

    g: the first query of the pass in its KV head; block: `Rerank` of a thread. Of equal products,
    `position_hash` decides. The limit of each query is searched from its guess, which it replaces.
    """
    rows = block.rows[g : g + block.scores.shape[1]]
    _score_listed(shape, segments, j, listed, rows, block)
    n, line = len(listed), block.scores.strides[0]
    most, entries = wanted.k + wanted.k // 8 + 4, address(block.entries)
    for h in range(len(rows)):
        scores = address(block.scores[0, h])
        limit = limit_between(scores, line, n, min(wanted.k, n), most, block.guesses[g + h])
        block.guesses[g + h] = limit
        n_taken = take_at_least(scores, line, n, limit, address(listed), entries)
        mark_k_best(
            entries, n_taken, wanted.k, limit, wanted.seed, block.spare, block.histogram,
            block.chosen,
        )  # fmt: skip
