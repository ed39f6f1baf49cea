"""Samples of the segments: scanned first, they give limits that few more tokens pass than wanted.

Of two samples the smaller, of about four segments, gives limits for the larger, of one in eight
segments; this gives limits for the rest. Where a limit proves too high, the scan starts again
without it: samples save work, but never change the result.
"""

import numpy as np

from ...jit.cached import jit
from ..attention.layout import SEGMENT
from .best import kth_cost, position_hash
from .scores import score_of
from .work import SAMPLE_SEGMENTS

STRIDE = 8  # the larger sample is one in so many segments
SMALL_SAMPLE = 4  # segments of the smaller one, all of whose tokens are candidates
_OF_TOKENS = 64  # the sample of rows has one token in so many
_ALIKE = 4.0  # times the variance of independent tokens: neighbours are often near the same query


@jit
def likely_count(k, share):
    """Return how many best tokens of a share likely include all of the best k that are in it."""
    wanted = k * share
    return wanted + 3.0 * np.sqrt(_ALIKE * wanted) + 1.0


@jit
def sample_size(tokens):
    """Return how many tokens the sample for many rows has: whole segments; 0 of few tokens."""
    n = min(max(tokens // (_OF_TOKENS * SEGMENT), 1), SAMPLE_SEGMENTS) * SEGMENT
    return n if tokens >= 4 * n else 0


@jit
def put_order(first, stop, stride, order):
    """Write the segments of tokens first .. stop-1, beginning with a sample of one in `stride`.

    Returns how many segments there are, and how many are in the sample. Which one of `stride`
    neighbours is in it is drawn by hash: text may be periodic, as a fixed choice would be.
    """
    oldest, n = first // SEGMENT, (stop - 1) // SEGMENT - first // SEGMENT + 1
    count, in_sample = 0, 0
    for later in range(stride):
        for group in range(0, n, stride):
            drawn = later + ((np.int64(position_hash(group, 0)) * stride) >> 32)
            segment = group + (drawn - stride if drawn >= stride else drawn)
            if segment < n:
                order[count] = oldest + segment
                count += 1
        in_sample = in_sample if later else count
    return n, in_sample


@jit
def best_of_share(k, stride):
    """Return how many tokens of one in `stride` segments likely include its share of the best k.

    A tenth more than the share, as texts differ from part to part, and three standard deviations.
    """
    share = k / stride
    return np.int64(1.1 * share + 3.0 * np.sqrt(share) + 8.0)


@jit
def samples(first, stop, k):
    """Return the smaller and the larger sample: (stride, how many of its best tokens to keep).

    The best of the larger one are likely to include its share of the best k, those of the smaller
    one its share of these. Stride 0: there are too few segments for a sample.
    """
    n = (stop - first) // SEGMENT
    stride, share = n // SMALL_SAMPLE, best_of_share(k, STRIDE)
    return (
        (stride if stride > STRIDE else 0, best_of_share(share, max(stride, 1) / STRIDE)),
        (STRIDE if n > 2 * STRIDE else 0, share),
    )


@jit
def first_limits(wanted, candidates):
    """Set each query's limit so that `wanted` of the sample's candidates reach it; drop the others.

    Returns whether all queries had more candidates than that. Otherwise the sample has to be
    scanned again, as a query that had not gets no limit, and lacks tokens of the sample.
    """
    entries, counts, enough = candidates.entries, candidates.counts, True
    limits, spare, histogram = candidates.limits, candidates.spare[0], candidates.histogram
    for h in range(len(counts)):
        if counts[h] <= wanted:
            limits[h], enough = -np.inf, False
            continue
        cost, _ = kth_cost(entries[h], counts[h], wanted, 32, spare, histogram)
        limits[h], kept = score_of(cost), 0
        for i in range(counts[h]):
            entries[h, kept] = entries[h, i]
            kept += score_of(entries[h, i] >> np.uint64(32)) >= limits[h]
        counts[h] = kept
    return enough
