"""The k best of a stream of candidates, exactly, in memory for little more than 2 k of them.

A candidate is one uint64: what it costs (uint32, less is better) above its position. Equal costs
are decided by a seeded hash of the position, never by age: a bias to either end of a text would
lose the other. A full buffer is pruned to its k best, which also tells what later ones must beat.
"""

import numpy as np

from ...jit.cached import jit
from .work import DIGIT, HISTOGRAM

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
def kth_cost(entries, n, k, bits, spare, histogram):
    """The k-th smallest (from 1) cost of n entries whose costs have `bits` bits.

    One pass counts a digit, one collects the entries that share it with the answer into `spare`;
    few are left after the first digit. Where there is room, neighbours are counted apart: mostly
    their digits are the same, and one count would wait for the other. Gives (cost, how many cost
    less).
    """
    prefix, below, source = np.uint64(0), 0, entries
    while bits > 0:
        shift = np.uint64(max(bits - DIGIT, 0) + 32)
        size = 1 << min(bits, DIGIT)
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
        prefix = (prefix << np.uint64(min(bits, DIGIT))) | np.uint64(digit)
        bits -= min(bits, DIGIT)
        if bits > 0:
            kept = 0
            for i in range(n):
                spare[kept] = source[i]
                kept += (source[i] >> shift) & mask == np.uint64(digit)
            source, n = spare, kept
    return prefix, below


@jit
def prune(entries, n, k, bits, seed, ties, spare, histogram):
    """Move the k best of n > k entries to the front; gives the greatest cost among them.

    ties, spare: uint64, room for n entries each.
    """
    cost, below = kth_cost(entries, n, k, bits, spare, histogram)
    kept = tied = 0
    for i in range(n):  # no branch could guess what is next
        entry = entries[i]
        own = entry >> np.uint64(32)
        ties[tied] = entry & _LOW
        tied += own == cost
        entries[kept] = entry
        kept += own < cost
    need = k - below
    last = ~np.uint64(0)
    if need < tied:
        for i in range(tied):
            ties[i] |= np.uint64(position_hash(ties[i], seed)) << np.uint64(32)
        last, _ = kth_cost(ties, tied, need, 32, spare, histogram)
    # Two positions never share a hash: every step of the finaliser can be undone.
    for i in range(tied):
        entries[kept] = (cost << np.uint64(32)) | (ties[i] & _LOW)
        kept += ties[i] >> np.uint64(32) <= last
    return cost


@jit
def prune_scores(h, k, seed, found):
    """`prune` for the candidates of query h whose costs are those of scores (`scores`)."""
    worst = prune(
        found.entries[h],
        found.counts[h],
        k,
        32,
        seed,
        found.spare[0],
        found.spare[1],
        found.histogram,
    )
    found.counts[h] = k
    return worst
