"""The k largest exact products of a row's query heads among listed tokens, row after row."""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.views import address
from ...attention.decode.scores import gathered_scores
from ...attention.layout import SEGMENT
from ..narrow import limit_between, mark_k_best, take_at_least


@jit
def _score_listed(shape, segments, j, listed, rows, block):
    """Write the exact products of the queries `rows` of a pass with listed keys."""
    work = block.products
    room, parts = address(work.gathered_works), address(work.works)
    for begin in range(0, len(listed), SEGMENT):
        tokens, s = listed[begin : begin + SEGMENT], address(block.scores[begin // SEGMENT])
        gathered_scores(shape, address(rows), tokens, segments, j, room, parts, s)
        for h in range(len(rows)):
            for t in range(len(tokens), (len(tokens) + 15) // 16 * 16):
                block.scores[begin // SEGMENT, h, t] = -np.inf


@jit
def rerank_row(shape, segments, j, listed, rows, guesses, wanted, block):
    """Mark in `chosen` the k largest exact products of each query of a pass among listed tokens.

    guesses: the limits of the row before, which are replaced by those of this one. block: has the
    fields of `RowRerank`. The choice is that of `single.rerank`.
    """
    _score_listed(shape, segments, j, listed, rows, block)
    n, line, seed = len(listed), block.scores.strides[0], wanted.seed
    most = wanted.k + wanted.k // 8 + 4
    for h in range(len(rows)):
        scores = address(block.scores[0, h])
        limit = limit_between(scores, line, n, min(wanted.k, n), most, guesses[h])
        guesses[h] = limit
        entries = address(block.taken)
        taken = take_at_least(scores, line, n, limit, address(listed), entries)
        mark_k_best(
            entries, taken, wanted.k, limit, seed, block.spare, block.histogram, block.chosen
        )
