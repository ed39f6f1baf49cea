"""The k largest exact products of one token's query heads among listed tokens."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.views import address
from ...attention.decode.scores import gathered_scores
from ...attention.layout import SEGMENT, TILE
from ...attention.work import HEAD_SCORES
from ..best import entry_of, make_room, mark_best, start
from ..lists import clear
from ..masks import low_bit
from ..scores import at_least, cost_of


@jit
def rerank(shape, segments, j, listed, queries, wanted, search):
    """Mark each query's k largest exact products among the listed tokens of KV head j.

    search: has the scratch `products` and `found` (`Candidates`), whose marks are cleared first.
    """
    found, work, n = search.found, search.products, len(queries)
    limits, entries, counts, s = found.limits, found.entries, found.counts, address(work.works)
    start(n, found)
    for begin in range(0, len(listed), SEGMENT):
        tokens = listed[begin : min(begin + SEGMENT, len(listed))]
        room = address(work.gathered_works)
        gathered_scores(shape, address(queries), tokens, segments, j, room, s + 4 * HEAD_SCORES, s)
        for h in range(n):
            line, m = s + h * HEAD_SCORES, counts[h]
            for i in range(0, len(tokens), TILE):
                some = at_least(line + 4 * i, limits[h])
                while some:
                    t = i + low_bit(some)
                    some &= some - np.uint64(1)
                    if t < len(tokens):
                        cost = cost_of(np.uint64(v.load_u32(line, 4 * t)))
                        entries[h, m] = entry_of(cost, tokens[t])
                        m += 1
            counts[h] = m
            make_room(h, wanted.k, wanted.seed, found, entries.shape[1])
    if len(listed) > 0:
        clear(found.marks, np.int64(listed[len(listed) - 1]) + 1)
    mark_best(n, wanted.k, wanted.seed, found)
