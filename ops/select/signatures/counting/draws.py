"""The rest of a query's choice, drawn from its candidates: by lot, then by the hash of positions.

Lot and hash are one key. Those of the lowest keys are chosen, as many as are missing; instead of
sorting, a limit of keys is guessed and checked by counting, until exactly so many are below it.
"""

import numpy as np

from .....jit.cached import jit
from .....jit.launch.views import address
from .....jit.simd import store
from ....attention.layout import SEGMENT
from ...best import entry_of, position_hash
from ...masks import bit_count, low_bit
from ..lots import key_of, lot, lots_of

_LOW_BITS = np.uint64(32)


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
def draw(kind, own, k, seed, marks, block):
    """Mark those of a query's candidates that it chooses: by lot, then by the hash of positions.

    marks uint64[]: a bit for each position.
    """
    positions, keys = block.positions, block.keys
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
