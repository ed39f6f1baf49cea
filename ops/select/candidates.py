"""From estimates to a choice: the candidates' exact scores."""

import numpy as np

from ...jit import simd as v
from ...jit.cached import jit
from ..attention.decode.scores import listed_scores
from ..attention.layout import SEGMENT, TILE
from ..attention.work import HEAD_SCORES
from .best import prune
from .lists import clear, mark
from .masks import low_bit
from .scores import at_least, cost_of, score_of


@jit
def rerank(
    shape, segments, j, listed, k, seed, rows, room, s, limits, entries, seen, spare, marks,
    histogram,
):  # fmt: skip
    """Mark each query's k largest exact products among the listed tokens."""
    n = len(seen)
    parts = s + 4 * HEAD_SCORES
    for h in range(n):
        limits[h], seen[h] = -np.inf, 0
    for begin in range(0, len(listed), SEGMENT):
        block = listed[begin : min(begin + SEGMENT, len(listed))]
        listed_scores(shape, rows.ctypes.data, block, segments, j, room, parts, s)
        for h in range(n):
            line, m = s + h * HEAD_SCORES, seen[h]
            for i in range(0, len(block), TILE):
                some = at_least(line + 4 * i, limits[h])
                while some:
                    t = i + low_bit(some)
                    some &= some - np.uint64(1)
                    if t < len(block):
                        cost = cost_of(np.uint64(v.load_u32(line, 4 * t)))
                        entries[h, m] = (cost << np.uint64(32)) | np.uint64(block[t])
                        m += 1
            if m + SEGMENT > entries.shape[1]:
                worst = prune(entries[h], m, k, 32, seed, spare[0], spare[1], histogram)
                m, limits[h] = k, score_of(worst)
            seen[h] = m
    clear(marks, np.int64(listed[len(listed) - 1]) + 1)
    for h in range(n):
        if seen[h] > k:
            prune(entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram)
        mark(entries[h], min(seen[h], k), marks)
