"""What the queries of many rows choose, by counting: with AVX-512 that counts bits of words.

    sample   for each query, among which four distances its k-th nearest is likely to be
    count    of all signatures, how many are nearer than each of these
    mark     tokens that are nearer than the k-th, and those of its distance whose lots are low
    draw     the rest from those of one or two lots

Segments are the outer loop and queries the inner one (`sliced`). Where the k-th nearest is not
among the four distances, those queries count again; where another number of tokens has low lots
than is likely, theirs are drawn from all lots. So each row's choice is that of `hamming`.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.views import address
from ....jit.simd import store
from ...attention.layout import SEGMENT
from ..best import entry_of, position_hash
from ..masks import WORDS, bit_count, bits_of, low_bit
from ..work import LEVELS, ROWS, SAMPLED
from .lots import key_of, lot, lots_of
from .near import word_at
from .sliced import (
    count_segment,
    counted,
    counted_sure,
    mark_segment,
    put_cuts,
    put_limit,
    put_query,
    slice_lots,
    slice_segment,
)

_SHARE = 8  # one token in so many is in the sample, up to SAMPLED
_RUN = 32  # neighbouring signatures of the sample
_GUESS = 6  # a distance, even as all where counting begins, for the first rows
_DEVIATIONS = 1.75  # times the root of a number of ties, half of which is their lots' deviation
_LOW_BITS = np.uint64(32)


@jit
def scratch_of(mine):
    """What these functions work on, of a thread's `RowScratch`."""
    return mine.by_counts


@jit
def put_rows(first, last, block):
    """How many segments there are, of which none comes first."""
    return (last - 1) // SEGMENT - first // SEGMENT + 1, 0


@jit
def _segments(among):
    """The first segment of a range, and the one behind its last."""
    return among.first // SEGMENT, (among.last - 1) // SEGMENT + 1


@jit
def _take_sample(kind, items, offset, first, last, block):
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
def _guess_limits(kind, n_segments, wanted, n_queries, block):
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
def _find_limits(kind, items, offset, among, k, n_queries, block):
    """Each query's distance of the k nearest, by counting from a guess."""
    n, (begin, end) = _ask_all(kind, n_queries, block), _segments(among)
    while n:
        for segment in range(begin, end):
            place = items[segment] + offset
            _slice(kind, place, segment, among.first, among.last, block)
            _count(kind, n, block)
        n = _settle(kind, end - begin, k, n, block)


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
    halves, queries, line = address(block.halves), address(block.queries), block.queries.strides[0]
    for i in range(n):
        own = block.asking[i]
        put_limit(kind, queries + own * line, block.limits[own])
        put_cuts(queries + own * line, block.cuts[own, 0], block.cuts[own, 1])
        block.counts[own] = 0
        if own % together == 0:
            block.near[own // together] = 0
    begin, end = _segments(among)
    for segment in range(begin, end):
        _slice(kind, items[segment] + offset, segment, among.first, among.last, block)
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
def _find_marks(kind, items, offset, among, n_queries, together, k, seed, block):
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


@jit
def scan_block(kind, given, j, row, among, n, due, together, k, seed, block):
    """Mark the sure tokens of the rows of a block, from `row` on; returns their queries."""
    n_rows, _, group = given.queries.shape
    first, last, offset = among.first, among.last, j * SEGMENT * (bits_of(kind) // 8)
    rows = block.signatures[: min(ROWS, n_rows - row)]
    n_queries = len(rows) * group
    for r in range(len(rows)):
        for g in range(group):
            rows[r, g] = given.queries[row + r, j, g]
            own = r * group + g
            put_query(kind, address(block.queries[own]), rows[r, g])
            block.limits[own] = _GUESS
    sampled = _take_sample(kind, given.items, offset, first, last, block)
    if sampled:
        wanted = max(k * sampled * SEGMENT // (last - first), 1)
        _guess_limits(kind, sampled, wanted, n_queries, block)
    _find_limits(kind, given.items, offset, among, k, n_queries, block)
    _find_marks(kind, given.items, offset, among, n_queries, together, k, seed, block)
    return rows


@jit
def _positions(own, block):
    """Write the positions of a query's candidates, ascending; returns how many there are.

    Two of a word are written at a time, and what is too much is overwritten: most have one or two.
    """
    words, places, to = block.words[own, 0], block.words[own, 1], address(block.positions)
    n = 0
    for i in range(block.counts[own]):
        word, first = words[i], 64 * np.int64(places[i])
        then = n + bit_count(word)
        while True:
            for _ in range(2):
                store(to, 4 * n, np.uint32(first + low_bit(word)))
                word &= word - np.uint64(1)
                n += 1
            if n >= then:
                break
        n = then
    return n


@jit
def _draw(kind, own, k, seed, block):
    """Mark those of a query's candidates that it chooses: by lot, then by the hash of positions."""
    positions, keys, marks = block.positions, block.keys, block.marks
    need, lots = k - block.nearer[own], np.uint32(lots_of(kind))
    if need == 0:
        return
    n = _positions(own, block)
    for i in range(n):
        t = positions[i]
        key = key_of(t >> np.uint32(10), seed)
        keys[i] = entry_of(lot(lots, key, t & np.uint32(SEGMENT - 1)), position_hash(t, seed))
    low, high = block.cuts[own, 0], block.cuts[own, 1]
    limit = _limit_of(keys, n, need, np.uint64(low) << _LOW_BITS, np.uint64(high) << _LOW_BITS)
    for i in range(n):
        t = np.int64(positions[i])
        marks[t >> 6] |= np.uint64(keys[i] < limit) << np.uint64(t & 63)


@jit
def _limit_of(keys, n, need, low, high):
    """A limit that `need` of the n keys uint64 are below; keys differ, and lie in low .. high-1.

    Keys are as good as drawn at random, so the next guess is in proportion; every third halves.
    """
    below, above, tries = 0, n, 0
    if need == n:
        return high
    while True:
        tries += 1
        step = (high - low) >> np.uint64(1)
        if tries % 3:
            step = np.uint64(np.float64(high - low) * ((need - below) / (above - below)))
        limit = min(max(low + step, low + np.uint64(1)), high - np.uint64(1))
        count = 0
        for i in range(n):
            count += keys[i] < limit
        if count == need:
            return limit
        if count < need:
            low, below = limit, count
        else:
            high, above = limit, count


@jit
def mark_pass(kind, items, offset, among, n, queries, k, seed, p, block):
    """Mark what pass p of a block, some queries uint64 of one row, chooses."""
    near = block.near[p]
    for w in range((among.last + 63) // 64):
        block.marks[w] |= near[w]
    for own in range(p * len(queries), (p + 1) * len(queries)):
        _draw(kind, own, k, seed, block)
