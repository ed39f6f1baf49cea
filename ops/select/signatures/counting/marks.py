"""Marks of the tokens that each query chooses for sure, and words of its candidates.

Tokens nearer than the limit are sure. Of those at the limit, the ties, as many are chosen as are
missing, by their lots. Lots are as good as drawn at random, so an n-th of the ties, give or take a
few, has each of the n lots: ties of low lots are sure, those of the lots around the share that is
missing are candidates. Where that proves wrong, all ties of that query are candidates, and the
queries that share its marks are marked again.
"""

import numpy as np

from .....jit.cached import jit
from .....jit.launch.views import address
from ...masks import WORDS, bit_count
from ...sampling import segments_of
from ..lots import key_of, lots_of
from .adders import mark_segment
from .halves import slice_lots, slice_segment
from .queries import counted_sure, put_cuts, put_limit

_DEVIATIONS = 1.75  # times the root of a number of ties, half of which is their lots' deviation


@jit
def _cut(kind, own, k, block):
    """Set the lots of ties that are chosen for sure, and those that are possible."""
    n, need, tied = lots_of(kind), k - block.nearer[own], block.tied[own]
    spread, sure, possible = _DEVIATIONS * np.sqrt(tied) + 2.0, 0, 0
    while sure < n and tied * (sure + 1) / n + spread <= need:
        sure += 1
    while possible < n and tied * possible / n - spread < need:
        possible += 1
    if need == tied:
        sure = n
    block.cuts[own, 0], block.cuts[own, 1] = sure, max(sure, possible)


@jit
def _mark(kind, items, offset, among, n, together, seed, block):
    """Mark the sure tokens of the first n queries of `asking`, and list words of candidates."""
    planes, halves = address(block.planes), address(block.halves)
    queries, line = address(block.queries), block.queries.strides[0]
    for i in range(n):
        own = block.asking[i]
        put_limit(kind, queries + own * line, block.limits[own])
        put_cuts(queries + own * line, block.cuts[own, 0], block.cuts[own, 1])
        block.counts[own] = 0
        if own % together == 0:
            block.near[own // together] = 0
    begin, end = segments_of(among)
    for segment in range(begin, end):
        place = items[segment] + offset
        slice_segment(kind, place, segment, among.first, among.last, planes, halves)
        slice_lots(kind, key_of(segment, seed), halves)
        for i in range(n):
            own = block.asking[i]
            marks, words = address(block.near[own // together]), address(block.words[own, 0])
            places, count = address(block.words[own, 1]), block.counts[own]
            count = mark_segment(
                kind, halves, queries + own * line, marks + 8 * segment * WORDS, words, places,
                segment * WORDS, count,
            )  # fmt: skip
            block.counts[own] = count


@jit
def _fits(kind, own, k, block):
    """Whether a query's sure tokens are at most k, and all of them with its candidates enough."""
    sure, found = counted_sure(address(block.queries[own])), 0
    for i in range(block.counts[own]):
        found += bit_count(block.words[own, 0, i])
    block.nearer[own] = sure
    return sure <= k <= sure + found


@jit
def find_marks(kind, items, offset, among, n_queries, together, k, seed, block):
    """Mark what is sure of each query, and list candidates for the rest."""
    n = n_queries
    for own in range(n_queries):
        block.asking[own] = own
        _cut(kind, own, k, block)
    while n:
        _mark(kind, items, offset, among, n, together, seed, block)
        again = 0
        for i in range(0, n, together):  # queries of a pass share their marks
            own, fit = block.asking[i], True
            for other in range(own, own + together):
                if not _fits(kind, other, k, block):
                    block.cuts[other, 0], block.cuts[other, 1] = 0, lots_of(kind)
                    fit = False
            for other in range(own, own + together):
                if not fit:
                    block.asking[again] = other
                    again += 1
        n = again
