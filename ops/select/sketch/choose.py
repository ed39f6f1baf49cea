"""Choosing by estimates: each query head's best estimates, scored exactly.

For each KV head, and the 1 to 4 of its query heads that share a pass over the index:

    candidates  each query head's `n_candidates` best estimates of q . k
    rerank      of the candidates of all of these heads, each takes its k largest exact q . k
    list        the union of what all query heads of the KV head took

How q . k is estimated, and how segments are scanned, is up to the index: `scan` here, and `scan` of
the blocks. Samples (`sampling`) save work, but never change the result.
"""

import numpy as np

from ....jit.cached import jit
from ..best import mark_best, start
from ..choice import Range
from ..lists import clear, mark_taken, write_list
from ..queries import pack_queries
from ..rerank.single import rerank
from ..sampling import first_limits, put_order, samples


def make_choose(prepare, scan):
    """The function that writes one KV head's list, for an index of these two functions.

    prepare(kind, query, head, h, mine) makes what the scan needs of query head `head`, number h of
    those that share a pass.
    scan(kind, query, j, among, wanted, mine, begin, end) adds the candidates of the segments
    begin .. end-1 of `search.order` to those in `search.found`; returns how many blocks it scanned.
    """

    @jit
    def gather(kind, query, j, among, wanted, mine):
        """Mark each query's candidates of tokens first .. last-1; returns the blocks scanned."""
        found, order = mine.search.found, mine.search.order
        limits, counts, begin, scanned = found.limits, found.counts, 0, 0
        start(len(counts), found)
        n, _ = put_order(among.first, among.last, 1, order)
        for stride, best in samples(among.first, among.last, wanted.n_candidates):
            if stride:
                counts[:] = 0
                n, begin = put_order(among.first, among.last, stride, order)
                scanned += scan(kind, query, j, among, wanted, mine, 0, begin)
                begin = begin if first_limits(best, found) else 0
        again = True
        while again:
            if not begin:
                counts[:] = 0
            scanned += scan(kind, query, j, among, wanted, mine, begin, n)
            again, begin = False, 0
            for h in range(len(counts)):
                if counts[h] < wanted.n_candidates and limits[h] != -np.inf:
                    limits[h], again = -np.inf, True  # the sample promised too much
        mark_best(len(counts), wanted.n_candidates, wanted.seed, found)
        return scanned

    @jit
    def choose(shape, kind, query, j, among, indexed, wanted, mine):
        """Write the list of KV head j; returns its length and how many blocks were scanned.

        Tokens indexed .. last-1 have no estimates: all of them are candidates.
        """
        search, scanned = mine.search, 0
        found, chosen, rows = search.found, search.chosen, search.products.rows
        group, together = len(rows), len(found.counts)
        pack_queries(shape, query.q, j, group, rows)
        clear(chosen, among.stop)
        for g in range(0, group, together):
            for h in range(together):
                prepare(kind, query, j * group + g + h, h, mine)
            clear(found.marks, among.stop)
            if indexed > among.first:
                estimated = Range(among.first, indexed, among.stop)
                scanned += gather(kind, query, j, estimated, wanted, mine)
            n = write_list(found.marks, among.first, indexed, among.last, search.listed)
            listed, queries = search.listed[among.first : n], rows[g : g + together]
            rerank(shape, query.segments, j, listed, queries, wanted, search)
            for w in range((among.last + 63) // 64):
                chosen[w] |= found.marks[w]
        mark_taken(query.taken[j], among.stop, chosen)
        return write_list(chosen, among.first, among.last, among.stop, query.lists[j]), scanned

    return choose
