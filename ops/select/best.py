"""The k best of a stream of candidates, exactly, in a buffer of little more than 2 k entries.

A candidate is an entry, uint64: its cost (uint32, less is better) above its position (uint32). Of
equal costs a seeded hash of the position decides, and not the position: either the oldest or the
newest tokens would lose every tie. A full buffer is pruned to its k best entries; what costs more
than all of these need not be collected any more.
"""

import numpy as np

from ...jit.cached import jit
from ..attention.layout import SEGMENT
from .lists import mark
from .scores import score_of
from .work import DIGIT, FEW, HISTOGRAM, SMALL_DIGIT

_LOW = np.uint64(0xFFFFFFFF)


@jit
def position_hash(position, seed):
    """32 well-mixed bits of a position: the finaliser of MurmurHash3 over position ^ seed."""
    x = np.uint32(position) ^ np.uint32(seed)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x85EBCA6B))
    x ^= x >> np.uint32(13)
    x = np.uint32(x * np.uint32(0xC2B2AE35))
    return x ^ (x >> np.uint32(16))


@jit
def entry_of(cost, position):
    """A candidate as one number."""
    return (np.uint64(cost) << np.uint64(32)) | np.uint64(position)


@jit
def kth_cost(entries, n, k, bits, spare, histogram):
    """Return the k-th smallest (from 1) cost of n entries, of `bits` bits, and how many cost less.

    A radix select, from the leading digit on: one pass counts the values of a digit, another copies
    the entries that share it with the answer to `spare`; few are left after the first digit. Where
    the histogram has room, neighbouring entries have counters of their own: their digits are mostly
    equal, and one counter would be waited for. Of few entries, few bits are counted at a time: it
    would cost more to clear and to search 2,048 counters than to count.
    """
    prefix, below, source = np.uint64(0), 0, entries
    while bits > 0:
        width = min(bits, DIGIT if n >= FEW else SMALL_DIGIT)
        shift = np.uint64(bits - width + 32)
        size = 1 << width
        lanes = 4 if 4 * size <= HISTOGRAM else 1
        for i in range(size * lanes):
            histogram[i] = 0
        mask = np.uint64(size - 1)
        for i in range(n):
            histogram[(i & (lanes - 1)) * size + np.int64((source[i] >> shift) & mask)] += 1
        for i in range(size, size * lanes):
            histogram[i & (size - 1)] += histogram[i]
        digit = 0
        while below + histogram[digit] < k:
            below += histogram[digit]
            digit += 1
        prefix = (prefix << np.uint64(width)) | np.uint64(digit)
        bits -= width
        if bits > 0:
            kept = 0
            for i in range(n):
                spare[kept] = source[i]
                kept += (source[i] >> shift) & mask == np.uint64(digit)
            source, n = spare, kept
            if n == 1:
                return spare[0] >> np.uint64(32), below
    return prefix, below


@jit
def tie_limit(ties, n, needed, seed, spare, histogram):
    """Return the hash up to which `needed` of the n positions in `ties` are chosen.

    Positions become entries of their hashes, unless all n are chosen. Two positions never share a
    hash: every operation of the finaliser can be undone.
    """
    if needed >= n:
        return ~np.uint64(0)
    for i in range(n):
        ties[i] = entry_of(position_hash(ties[i], seed), ties[i])
    limit, _ = kth_cost(ties, n, needed, 32, spare, histogram)
    return limit


@jit
def prune(entries, n, k, bits, seed, ties, spare, histogram):
    """Move the k best of n > k entries to the front; returns the greatest cost among them.

    ties, spare: uint64, room for n entries each.
    """
    cost, below = kth_cost(entries, n, k, bits, spare, histogram)
    kept = tied = 0
    for i in range(n):  # without branches, which no CPU could predict here
        entry = entries[i]
        entry_cost = entry >> np.uint64(32)
        ties[tied] = entry & _LOW
        tied += entry_cost == cost
        entries[kept] = entry
        kept += entry_cost < cost
    last_hash = tie_limit(ties, tied, k - below, seed, spare, histogram)
    for i in range(tied):
        entries[kept] = entry_of(cost, ties[i] & _LOW)
        kept += ties[i] >> np.uint64(32) <= last_hash
    return cost


@jit
def start(n, candidates):
    """Leave queries 0 .. n-1 without `candidates`: any score makes one."""
    for h in range(n):
        candidates.limits[h], candidates.counts[h] = -np.inf, 0


@jit
def prune_scores(h, k, seed, candidates):
    """Keep the k best candidates of query h; the least score among them is its new limit."""
    entries, n, spare = candidates.entries[h], candidates.counts[h], candidates.spare
    cost = prune(entries, n, k, 32, seed, spare[0], spare[1], candidates.histogram)
    candidates.limits[h], candidates.counts[h] = score_of(cost), k


@jit
def make_room(h, k, seed, candidates, room):
    """Prune the candidates of query h where those of another segment would not fit in `room`."""
    if candidates.counts[h] + SEGMENT > room:
        prune_scores(h, k, seed, candidates)


@jit
def mark_best(n, k, seed, candidates):
    """Mark the k best candidates of each of the queries 0 .. n-1."""
    for h in range(n):
        if candidates.counts[h] > k:
            prune_scores(h, k, seed, candidates)
        mark(candidates.entries[h], candidates.counts[h], candidates.marks)
