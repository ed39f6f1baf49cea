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
from ..rerank import mark_largest
from ..sampling import first_limits, put_order, samples


def make_choose(prepare, scan):
    """Return the function that writes the list of a KV head, for an index of two functions.

    prepare(kind, query, head, h, scratch) makes what the scan needs of query head `head`, number h
    of those that share a pass.
    scan(kind, query, j, among, wanted, scratch, begin, end) adds the candidates of the segments
    begin .. end-1 of `search.order` to `search.candidates`; returns how many blocks it scanned.
    """

    @jit
    def gather(kind, query, j, among, wanted, scratch):
        """Mark each query's candidates of tokens first .. last-1; returns the blocks scanned."""
        candidates, order = scratch.search.candidates, scratch.search.order
        limits, counts, begin, scanned = candidates.limits, candidates.counts, 0, 0
        start(len(counts), candidates)
        n, _ = put_order(among.first, among.last, 1, order)
        for stride, best in samples(among.first, among.last, wanted.n_candidates):
            if stride:
                counts[:] = 0
                n, begin = put_order(among.first, among.last, stride, order)
                scanned += scan(kind, query, j, among, wanted, scratch, 0, begin)
                begin = begin if first_limits(best, candidates) else 0
        again = True
        while again:
            if not begin:
                counts[:] = 0
            scanned += scan(kind, query, j, among, wanted, scratch, begin, n)
            again, begin = False, 0
            for h in range(len(counts)):
                if counts[h] < wanted.n_candidates and limits[h] != -np.inf:
                    limits[h], again = -np.inf, True  # the sample promised too much
        mark_best(len(counts), wanted.n_candidates, wanted.seed, candidates)
        return scanned

    @jit
    def choose(shape, kind, query, j, among, indexed, wanted, scratch):
        """Write the list of KV head j; returns how many blocks were scanned. Tokens
        indexed .. last-1 have no estimates: all of them are candidates."""
        search, lists, scanned = scratch.search, query.lists, 0
        candidates, rerank = search.candidates, search.rerank
        group, together = len(rerank.rows), len(candidates.counts)
        pack_queries(shape, query.q, j, group, rerank.rows)
        rerank.guesses[:] = 0.0
        clear(rerank.chosen, among.stop)
        for g in range(0, group, together):
            for h in range(together):
                prepare(kind, query, j * group + g + h, h, scratch)
            clear(candidates.marks, among.stop)
            if indexed > among.first:
                estimated = Range(among.first, indexed, among.stop)
                scanned += gather(kind, query, j, estimated, wanted, scratch)
            n = write_list(candidates.marks, 0, indexed, among.last, rerank.listed)
            mark_largest(shape, query.keys.segments, j, rerank.listed[:n], g, wanted, rerank)
        mark_taken(query.taken[j], among.stop, rerank.chosen)
        tokens = lists.tokens[j]
        lists.counts[j] = write_list(rerank.chosen, among.first, among.last, among.stop, tokens)
        return scanned

    return choose
