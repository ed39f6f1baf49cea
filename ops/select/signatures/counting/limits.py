"""Each query's limit: the distance of its k-th nearest signature, found by counting.

A pass over the signatures counts, for each query, how many are nearer than each of four distances.
A sample of runs from everywhere is counted first, as often as it takes, and says which four all
signatures are to be compared with. Queries whose k-th nearest is at none of these count again.
"""

import numpy as np

from .....jit.cached import jit
from .....jit.launch.views import address
from .....jit.simd import store
from ....attention.layout import SEGMENT
from ...best import position_hash
from ...masks import bits_of
from ...sampling import segments_of
from ...work import LEVELS, SAMPLED
from ..near import word_at
from .adders import count_segment
from .halves import slice_segment
from .queries import counted, put_limit

_SHARE = 8  # one token in so many is in the sample, up to SAMPLED
_RUN = 32  # neighbouring signatures of the sample


@jit
def take_sample(kind, items, offset, first, last, block):
    """Copy runs of signatures from everywhere in first .. last-1; returns how many segments."""
    n = min((last - first) // (_SHARE * SEGMENT), SAMPLED)
    item_bytes, to = bits_of(kind) // 8, address(block.sample)
    step = (last - first) // max(n * SEGMENT // _RUN, 1)
    for run in range(n * SEGMENT // _RUN):  # drawn by hash: text may be periodic
        drawn = (np.int64(position_hash(run, 0)) * (step - _RUN + 1)) >> 32
        for t in range(first + run * step + drawn, first + run * step + drawn + _RUN):
            word = word_at(kind, items[t // SEGMENT] + offset + t % SEGMENT * item_bytes)
            if item_bytes == 4:
                store(to, 0, np.uint32(word))
            else:
                store(to, 0, word)
            to += item_bytes
    return n


@jit
def _slice(kind, place, segment, first, last, block):
    slice_segment(kind, place, segment, first, last, address(block.planes), address(block.halves))


@jit
def _count(kind, n, block):
    """Count the near tokens of the first n queries of `asking` in the segment that is sliced."""
    halves, queries, line = address(block.halves), address(block.queries), block.queries.strides[0]
    for i in range(n):
        count_segment(kind, halves, queries + block.asking[i] * line)


@jit
def _settle(kind, n_segments, wanted, n, block):
    """Of the first n queries of `asking`, set the limit to the distance of the `wanted` nearest.

    Where that is not among those counted, ask again for others; returns how many queries do.
    """
    again, tokens = 0, n_segments * SEGMENT
    for i in range(n):
        own = block.asking[i]
        query, limit, level = address(block.queries[own]), block.limits[own], 0
        while level <= LEVELS and tokens - counted(query, level) < wanted:
            level += 1
        if 0 < level <= LEVELS:
            block.limits[own] = limit + level - 1
            block.nearer[own] = tokens - counted(query, level - 1)
            block.tied[own] = tokens - counted(query, level) - block.nearer[own]
            continue
        limit += LEVELS if level else -LEVELS
        block.limits[own] = min(max(limit, 0), bits_of(kind) - 2)
        put_limit(kind, query, block.limits[own])
        block.asking[again] = own
        again += 1
    return again


@jit
def _ask_all(kind, n_queries, block):
    for own in range(n_queries):
        block.asking[own] = own
        put_limit(kind, address(block.queries[own]), block.limits[own])
    return n_queries


@jit
def guess_limits(kind, n_segments, wanted, n_queries, block):
    """Each query's distance of the `wanted` nearest of the sample, then one at which to begin."""
    n, place = _ask_all(kind, n_queries, block), address(block.sample)
    while n:
        for i in range(n_segments):
            here = place + i * SEGMENT * (bits_of(kind) // 8)
            _slice(kind, here, 0, 0, SEGMENT, block)
            _count(kind, n, block)
        n = _settle(kind, n_segments, wanted, n, block)
    for own in range(n_queries):
        block.limits[own] = min(max(block.limits[own] - 1, 0) & ~1, bits_of(kind) - 2)


@jit
def find_limits(kind, items, offset, among, k, n_queries, block):
    """Each query's distance of the k nearest, by counting from a guess."""
    n, (begin, end) = _ask_all(kind, n_queries, block), segments_of(among)
    while n:
        for segment in range(begin, end):
            place = items[segment] + offset
            _slice(kind, place, segment, among.first, among.last, block)
            _count(kind, n, block)
        n = _settle(kind, end - begin, k, n, block)
