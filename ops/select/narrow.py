"""Few of many scores: limits that about as many reach as are wanted, and exactly the k best of few.

For choices of many rows (`sketch.rows`), where a limit is mostly known from the row before.
"""

import numpy as np
from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ..attention.layout import SEGMENT
from .best import entry_of, kth_cost, position_hash
from .lists import mark
from .masks import bit_count, low_bit
from .scores import at_least, cost_of

_LOW = np.uint64(0xFFFFFFFF)
_TRIES = 64  # doublings and halvings of a step: more than tell any two float32 apart
_DIGIT = 10  # bits of a cost that one pass counts, at most

_zeros_before = v.emits(types.int64, types.uint64)(
    lambda b, x: v.call(b, "llvm.ctlz.i64", v.I64, x, ir.Constant(ir.IntType(1), 0))
)


@jit
def count_at_least(scores, line, n, limit):
    """How many of n float32 are at least `limit`: 1,024 at address `scores`, as many at + line, …

    A line's end is filled up to a multiple of 16 with what is not.
    """
    count = 0
    for begin in range(0, n, SEGMENT):
        place = scores + begin // SEGMENT * line
        for i in range(0, min(n - begin, SEGMENT), 16):
            count += bit_count(at_least(place + 4 * i, limit))
    return count


@jit
def _greatest(scores, line, n):
    """The greatest of the scores of `count_at_least`."""
    most = v.set_f32(-np.inf)
    for begin in range(0, n, SEGMENT):
        place = scores + begin // SEGMENT * line
        for i in range(0, min(n - begin, SEGMENT), 16):
            most = v.vmax(most, v.load_f32(place, 4 * i))
    return v.hmax(most)


@jit
def limit_between(scores, line, n, least, most, guess):
    """A limit that `least` to `most` of the scores of `count_at_least` reach, searched from a guess
    (0 or not finite: there is none).

    Where many are equal, more reach it; -inf, which all reach, where there are fewer than `least`.
    """
    low, high = np.float32(-np.inf), np.float32(np.inf)  # enough reach this one, too few that one
    limit = np.float32(guess)
    if limit == 0.0 or not abs(limit) < np.inf:
        limit = np.float32(0.5) * _greatest(scores, line, n)
    step = np.float32(0.05) * abs(limit) + np.float32(1e-30)
    for _ in range(_TRIES):
        count = count_at_least(scores, line, n, limit)
        if least <= count <= most:
            return limit
        if count < least:
            high = limit
        else:
            low = limit
        if low > -np.inf and high < np.inf:
            limit = np.float32(0.5) * (low + high)
            if not low < limit < high:
                return low
        else:
            limit = limit + step if count > most else limit - step
            step *= np.float32(2.0)
    return low


@jit
def places_of(words, n_words, places):
    """Write the numbers of the set bits of words uint64[n_words] to places int64[]; their count.

    Four of a word are written at a time, and what is too much is overwritten: loops over the bits
    of each word would end unforeseen, which cost more than all the rest.
    """
    n = 0
    for w in range(n_words):
        word = words[w]
        if word == 0:
            continue
        then = n + bit_count(word)
        while True:
            for i in range(4):
                places[n + i] = 64 * w + low_bit(word)
                word &= word - np.uint64(1)
            n += 4
            if n >= then:
                break
        n = then
    return n


@jit
def take_at_least(scores, line, n, limit, listed, entries):
    """entries = those of n scores (`count_at_least`) that reach the limit, of the tokens listed
    uint32[n]; returns how many."""
    taken = 0
    for begin in range(0, n, SEGMENT):
        place = scores + begin // SEGMENT * line
        for i in range(0, min(n - begin, SEGMENT), 16):
            some = at_least(place + 4 * i, limit)
            while some:
                t = i + low_bit(some)
                some &= some - np.uint64(1)
                cost = cost_of(np.uint64(v.load_u32(place, 4 * t)))
                entries[taken] = entry_of(cost, listed[begin + t])
                taken += 1
    return taken


@jit
def _kth(entries, n, k, spare, histogram):
    """As `best.kth_cost`, for costs of which little is known but that they lie close together.

    What is counted is what a cost has above the least one, in about as many parts as there are
    entries. It is not fast where all costs of many entries but a few are nearly equal.
    """
    source, below = entries, 0
    while True:
        least, most = ~np.uint64(0), np.uint64(0)
        for i in range(n):
            least, most = min(least, source[i]), max(most, source[i])
        least >>= np.uint64(32)
        range_bits = 64 - _zeros_before((most >> np.uint64(32)) - least)
        width = min(_DIGIT, 65 - _zeros_before(np.uint64(n)))
        shift = max(range_bits - width, 0)
        for i in range(1 << min(width, range_bits)):
            histogram[i] = 0
        for i in range(n):
            histogram[np.int64(((source[i] >> np.uint64(32)) - least) >> np.uint64(shift))] += 1
        digit = 0
        while below + histogram[digit] < k:
            below += histogram[digit]
            digit += 1
        if shift == 0:
            return least + np.uint64(digit), below
        kept = 0
        for i in range(n):
            spare[kept] = source[i]
            own = ((source[i] >> np.uint64(32)) - least) >> np.uint64(shift)
            kept += own == np.uint64(digit)
        source, n = spare, kept


@jit
def mark_k_best(entries, n, k, seed, spare, histogram, marks):
    """Mark the k best of n entries uint64[], all of them if they are fewer; as `best.prune` chooses.

    spare: uint64[2], room for n + 1 entries each.
    """
    if n <= k:
        mark(entries, n, marks)
        return
    cost, below = _kth(entries, n, k, spare[0], histogram)
    ties, tied = spare[1], 0
    for i in range(n):  # without branches, which no CPU could predict here
        entry = entries[i]
        own, position = entry >> np.uint64(32), entry & _LOW
        ties[tied] = position
        tied += own == cost
        bit = np.uint64(own < cost) << (position & np.uint64(63))
        marks[np.int64(position >> np.uint64(6))] |= bit
    need, last = k - below, ~np.uint64(0)
    if need < tied:
        for i in range(tied):
            ties[i] = entry_of(position_hash(ties[i], seed), ties[i])
        last, _ = kth_cost(ties, tied, need, 32, spare[0], histogram)
        kept = 0
        for i in range(tied):
            ties[kept] = ties[i]
            kept += ties[i] >> np.uint64(32) <= last
        tied = kept
    mark(ties, tied, marks)
