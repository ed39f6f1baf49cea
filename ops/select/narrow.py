"""Few of many scores: limits that about as many reach as are wanted, and exactly the k best of few.

For choices of many rows (`sketch.rows`), where a limit is mostly known from the row before.
"""

import numpy as np

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import word
from ...jit.launch.views import address
from ..attention.layout import SEGMENT
from .best import entry_of, kth_cost, position_hash, tie_limit
from .lists import mark
from .masks import bit_count, low_bit
from .scores import at_least, cost_of, float_bits, score_of

_LOW = np.uint64(0xFFFFFFFF)
_TRIES = 64  # doublings and halvings of a step: more than tell any two float32 apart
_PARTS, _PART_SHIFT = 1024, np.uint64(13)  # of the 2 ** 23 float32 from a power of 2 to the next
_FEW = 64  # entries to compare each with all


@jit
def count_at_least(scores, line, n, limit):
    """Count the float32 that are at least `limit`: 1,024 at address `scores`, as many at + line, …

    n: how many there are; numbers below the limit fill the last line to a multiple of 16.
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
    """Return a limit that `least` to `most` of the scores of `count_at_least` reach.

    The search begins at the guess, if it is finite and not 0.

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
def take_at_least(scores, line, n, limit, listed, entries):
    """Write entries of the listed tokens uint32[n] whose scores (`count_at_least`) reach the limit.

    What fills the last line is no token, though it reaches a limit of -inf. Returns how many were
    written. scores, listed, entries: addresses.
    """
    taken = 0
    for begin in range(0, n, SEGMENT):
        place, stop = scores + begin // SEGMENT * line, min(n - begin, SEGMENT)
        for i in range(0, stop, 16):
            hits = at_least(place + 4 * i, limit) & np.uint64((1 << min(stop - i, 16)) - 1)
            while hits:
                t = i + low_bit(hits)
                hits &= hits - np.uint64(1)
                cost = cost_of(np.uint64(v.load_u32(place, 4 * t)))
                v.store(entries, 8 * taken, entry_of(cost, v.load_u32(listed, 4 * (begin + t))))
                taken += 1
    return taken


@jit
def _part_of(entry, worst):
    """The part of the scores above a limit that an entry is in: 1,024 for each power of 2.

    worst: the limit's cost.
    """
    return min((worst - (entry >> np.uint64(32))) >> _PART_SHIFT, np.uint64(_PARTS - 1))


@jit
def _dropped(entries, n, drop, worst, histogram):
    """Return the first part that keeps an entry if the worst `drop` of n are dropped, and how many
    of its entries are dropped."""
    for i in range(_PARTS):
        histogram[i] = 0
    for i in range(n):
        histogram[_part_of(np.uint64(word(entries, 8 * i)), worst)] += 1
    part = np.uint64(0)
    while drop >= histogram[part]:
        drop -= histogram[part]
        part += np.uint64(1)
    return part, drop


@jit
def keep_best(entries, n, k, limit, histogram):
    """Of n entries, all of which reach `limit`, keep a few more than the k best, in their order.

    Returns the limit that these reach, and how many there are. entries: address.
    """
    if n <= k or limit == -np.inf:
        return limit, n
    worst = cost_of(np.uint64(float_bits(limit)))
    part, _ = _dropped(entries, n, n - k, worst, histogram)
    most, kept = worst - (part << _PART_SHIFT), 0
    for i in range(n):
        entry = np.uint64(word(entries, 8 * i))
        v.store(entries, 8 * kept, entry)
        kept += entry >> np.uint64(32) <= most
    return score_of(most), kept


@jit
def mark_k_best(entries, n, k, limit, seed, spare, histogram, marks):
    """Mark the k best of n entries, all of which reach `limit`; as `best.prune` chooses them.

    entries: address; spare: uint64[2], room for n + 1 entries each. Few entries are in the part in
    which the k-th lies, unless the limit is near 0 or far away.
    """
    drop, part = max(n - k, 0), np.uint64(0)
    worst = cost_of(np.uint64(float_bits(limit)))
    if drop > 0:
        part, drop = _dropped(entries, n, drop, worst, histogram)
    else:
        part = ~part  # all are better
    near, kept, to, place = spare[0], 0, address(spare[0]), address(marks)
    for i in range(n):  # without branches, which no CPU could predict here
        entry = np.uint64(word(entries, 8 * i))
        part_of_entry, position = _part_of(entry, worst), entry & _LOW
        v.store(to, 8 * kept, entry)
        kept += part_of_entry == part
        at = np.int64(position >> np.uint64(6)) << 3
        better = (part_of_entry > part) | (part == ~np.uint64(0))
        bit = np.uint64(better) << (position & np.uint64(63))
        v.store(place, at, np.uint64(word(place, at)) | bit)
    if kept > _FEW:
        _mark_most(near, kept, kept - drop, seed, spare[1], histogram, marks)
    elif kept > drop:
        _mark_few(near, kept, kept - drop, seed, spare[1], marks)


@jit
def _mark_few(entries, n, k, seed, keys, marks):
    """Mark the k best of n entries, by comparing each with all; keys: scratch uint64[n]."""
    for i in range(n):
        keys[i] = (entries[i] & ~_LOW) | np.uint64(position_hash(entries[i] & _LOW, seed))
    for i in range(n):
        better = 0
        for other in range(n):
            better += keys[other] < keys[i]
        if better < k:
            mark(entries[i : i + 1], 1, marks)


@jit
def _mark_most(entries, n, k, seed, spare, histogram, marks):
    """Mark the k best of n entries: their costs' k-th by a radix select, then of equal costs."""
    tied = 0
    limit, below = kth_cost(entries, n, k, 32, spare, histogram)
    for i in range(n):
        cost = entries[i] >> np.uint64(32)
        if cost < limit:
            mark(entries[i : i + 1], 1, marks)
        elif cost == limit:
            entries[tied] = entries[i] & _LOW
            tied += 1
    last_hash = tie_limit(entries, tied, k - below, seed, spare, histogram)
    for i in range(tied):
        if entries[i] >> np.uint64(32) <= last_hash:
            mark(entries[i : i + 1], 1, marks)
