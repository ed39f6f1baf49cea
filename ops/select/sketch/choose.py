"""Choosing by estimates: each query head's best estimates, scored exactly.

For each KV head, and the 1 to 4 of its query heads that share a pass over the index:

    candidates  each query head's `n_candidates` best estimates of q . k
    rerank      of the candidates of all of these heads, each takes its k largest exact q . k
    list        the union of what all query heads of the KV head took

`scan` says how q . k is estimated. Samples (`sampling`) save work, but never change the result.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import of_thread
from ...attention.shape import shape_of
from ..best import mark_best, start
from ..choice import Range, Wanted
from ..lists import clear, mark_taken, write_list
from ..masks import kind_of
from ..queries import pack_queries, prepare_query
from ..rerank import mark_largest
from ..sampling import first_limits, put_order, samples
from .arguments import Query, Scratch
from .scan import scan_segments


@jit
def _gather(kind, query, j, among, wanted, scratch):
    """Mark each query's candidates of tokens first .. last-1."""
    candidates, order = scratch.search.candidates, scratch.search.order
    limits, counts, begin = candidates.limits, candidates.counts, 0
    start(len(counts), candidates)
    n, _ = put_order(among.first, among.last, 1, order)
    for stride, best in samples(among.first, among.last, wanted.n_candidates):
        if stride:
            counts[:] = 0
            n, begin = put_order(among.first, among.last, stride, order)
            scan_segments(kind, query, j, among, wanted, scratch, 0, begin)
            begin = begin if first_limits(best, candidates) else 0
    again = True
    while again:
        if not begin:
            counts[:] = 0
        scan_segments(kind, query, j, among, wanted, scratch, begin, n)
        again, begin = False, 0
        for h in range(len(counts)):
            if counts[h] < wanted.n_candidates and limits[h] != -np.inf:
                limits[h], again = -np.inf, True  # the sample promised too much
    mark_best(len(counts), wanted.n_candidates, wanted.seed, candidates)


@jit
def _choose(shape, kind, query, j, among, wanted, scratch):
    """Write the list of KV head j."""
    search, lists = scratch.search, query.lists
    candidates, rerank = search.candidates, search.rerank
    group, together = len(rerank.rows), len(candidates.counts)
    pack_queries(shape, query.q, j, group, rerank.rows)
    rerank.guesses[:] = 0.0
    clear(rerank.chosen, among.stop)
    for g in range(0, group, together):
        for h in range(together):
            prepare_query(kind, query, j * group + g + h, h, search)
        clear(candidates.marks, among.stop)
        _gather(kind, query, j, among, wanted, scratch)
        n = write_list(candidates.marks, 0, among.last, among.last, rerank.listed)
        mark_largest(shape, query.keys.segments, j, rerank.listed[:n], g, wanted, rerank)
    mark_taken(query.taken[j], among.stop, rerank.chosen)
    tokens = lists.tokens[j]
    lists.counts[j] = write_list(rerank.chosen, among.first, among.last, among.stop, tokens)


def make_sketch(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @kernel
    def sketch_kernel(
        share: Share, query: Query, memory: Scratch, n_kv_heads: int, among: Range, wanted: Wanted
    ):
        """Lists as the Hamming scan's. For every `together` queries reads bits / 8 + 2 bytes a
        token and KV head, and the K rows of the candidates."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        scratch = of_thread(memory, share.part)
        j = take(share.ticket)
        while j < n_kv_heads:
            _choose(shape, kind, query, j, among, wanted, scratch)
            j = take(share.ticket)

    return sketch_kernel
