"""From estimates to a choice: the candidates with the best estimates, and their exact scores."""

import numpy as np

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.views import address
from ..attention.decode.scores import gathered_scores
from ..attention.layout import SEGMENT, TILE
from ..attention.work import HEAD_SCORES
from .best import prune_scores
from .lists import clear, mark
from .masks import low_bit
from .sampling import first_limits, put_order, samples
from .scores import at_least, cost_of, score_of


def make_gather(scan):
    """The function that gathers each query's `few` best estimates, as `scan` finds them.

    scan(kind, query, j, among, wanted, mine, begin, end) joins those of the segments begin .. end-1
    of the order in `mine.order` to the candidates in `mine.found`, and gives how much it looked at.
    """

    @jit
    def gather(kind, query, j, among, wanted, mine):
        """Candidates of KV head j from tokens first .. last-1; gives how much was looked at."""
        found, order, few = mine.found, mine.order, wanted.few
        limits, counts, begin, looked = found.limits, found.counts, 0, 0
        limits[:], counts[:] = -np.inf, 0
        n, _ = put_order(among.first, among.last, 1, order)
        for stride, best in samples(among.first, among.last, few):
            if stride:
                counts[:] = 0
                n, begin = put_order(among.first, among.last, stride, order)
                looked += scan(kind, query, j, among, wanted, mine, 0, begin)
                begin = begin if first_limits(best, found) else 0
        again = True
        while again:
            if not begin:
                counts[:] = 0
            looked += scan(kind, query, j, among, wanted, mine, begin, n)
            again, begin = False, 0
            for h in range(len(counts)):
                if counts[h] < few and limits[h] != -np.inf:  # the sample promised too much
                    limits[h], again = -np.inf, True
        for h in range(len(counts)):
            if counts[h] > few:
                prune_scores(h, few, wanted.seed, found)
        return looked

    return gather


@jit
def rerank(shape, segments, j, listed, rows, work, k, seed, found):
    """Mark each query's k largest exact products among the listed tokens.

    rows: the queries, as the keys are laid out; work: `Products` of this thread.
    """
    limits, entries, counts = found.limits, found.entries, found.counts
    s, n = address(work.works), len(counts)
    for h in range(n):
        limits[h], counts[h] = -np.inf, 0
    for begin in range(0, len(listed), SEGMENT):
        block = listed[begin : min(begin + SEGMENT, len(listed))]
        room = address(work.rooms)
        gathered_scores(shape, address(rows), block, segments, j, room, s + 4 * HEAD_SCORES, s)
        for h in range(n):
            line, m = s + h * HEAD_SCORES, counts[h]
            for i in range(0, len(block), TILE):
                some = at_least(line + 4 * i, limits[h])
                while some:
                    t = i + low_bit(some)
                    some &= some - np.uint64(1)
                    if t < len(block):
                        cost = cost_of(np.uint64(v.load_u32(line, 4 * t)))
                        entries[h, m] = (cost << np.uint64(32)) | np.uint64(block[t])
                        m += 1
            counts[h] = m
            if m + SEGMENT > entries.shape[1]:
                limits[h] = score_of(prune_scores(h, k, seed, found))
    clear(found.marks, np.int64(listed[len(listed) - 1]) + 1)
    for h in range(n):
        if counts[h] > k:
            prune_scores(h, k, seed, found)
        mark(entries[h], min(counts[h], k), found.marks)
