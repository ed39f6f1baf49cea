"""What a part of the segments tells of all: limits that let few more pass than are wanted."""

import numpy as np

from ...jit.cached import jit
from ..attention.layout import SEGMENT
from .best import kth_cost, position_hash
from .scores import score_of

STRIDE = 8  # one of so many segments is scanned first, to tell what the best will be like
FEW = 4  # segments that are scanned before these: all of their tokens are candidates


@jit
def put_order(first, last, stride, order):
    """The segments of tokens first .. last-1 in rounds, each with one of `stride` neighbours.

    Gives how many there are, and how many the first round has. Which one is drawn by hash: text
    may have a period, too.
    """
    oldest, n = first // SEGMENT, (last - 1) // SEGMENT - first // SEGMENT + 1
    count, in_first = 0, 0
    for turn in range(stride):
        for group in range(0, n, stride):
            drawn = turn + ((np.int64(position_hash(group, 0)) * stride) >> 32)
            segment = group + (drawn - stride if drawn >= stride else drawn)
            if segment < n:
                order[count] = oldest + segment
                count += 1
        in_first = in_first if turn else count
    return n, in_first


@jit
def best_of_share(k, stride):
    """How many tokens of one of `stride` segments are likely to hold their share of the best k.

    Texts are not alike everywhere: a tenth more, and three standard deviations.
    """
    share = k / stride
    return np.int64(1.1 * share + 3.0 * np.sqrt(share) + 8.0)


@jit
def samples(first, last, k):
    """The two samples that are scanned first: one of how many segments, and how many of its best.

    So many of the larger one are likely to hold its share of the best k, so many of the smaller one
    its share of these. One of 0: there are too few segments.
    """
    n = (last - first) // SEGMENT
    few, share = n // FEW, best_of_share(k, STRIDE)
    return (
        (few if few > STRIDE else 0, best_of_share(share, max(few, 1) / STRIDE)),
        (STRIDE if n > 2 * STRIDE else 0, share),
    )


@jit
def first_limits(wanted, found):
    """Limits that `wanted` of a sample's candidates reach; what lies below them is dropped.

    Gives whether all queries had so many. One that had not has no limit, and what it has of the
    sample is not all that it needs.
    """
    limits, entries, counts, all_had = found.limits, found.entries, found.counts, True
    for h in range(len(counts)):
        if counts[h] <= wanted:
            limits[h], all_had = -np.inf, False
            continue
        cost, _ = kth_cost(entries[h], counts[h], wanted, 32, found.spare[0], found.histogram)
        limits[h], kept = score_of(cost), 0
        for i in range(counts[h]):
            entries[h, kept] = entries[h, i]
            kept += score_of(entries[h, i] >> np.uint64(32)) >= limits[h]
        counts[h] = kept
    return all_had
