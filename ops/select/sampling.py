"""What a part of the segments tells of all: limits that let few more pass than are wanted."""

import numpy as np

from ..attention.layout import SEGMENT
from ..cache import jit
from .best import kth_cost, position_hash
from .scores import score_of

STRIDE = 8  # one of so many segments is scanned first, to tell what the best will be like
FEW = 4  # segments that are scanned before these: all of their tokens are candidates


@jit
def strides(first, last):
    """One of how many segments is scanned first, and one of how many then; 0: there are too few."""
    n = (last - first) // SEGMENT
    few = n // FEW
    return few if few > STRIDE else 0, STRIDE if n > 2 * STRIDE else 0


@jit
def segment_of(group, stride, phase):
    """Which of `stride` segments that follow each other is scanned in a phase, 0 to stride - 1.

    Counted from the first of all; each has its turn. Drawn by hash: text may have a period, too.
    """
    turn = np.int64(position_hash(group, 0))
    return group * stride + (phase + turn) % stride


@jit
def best_of_share(k, stride):
    """How many tokens of one of `stride` segments are likely to hold their share of the best k.

    Texts are not alike everywhere: a tenth more, and three standard deviations.
    """
    share = k / stride
    return np.int64(1.1 * share + 3.0 * np.sqrt(share) + 8.0)


@jit
def first_limits(wanted, limits, entries, seen, spare, histogram):
    """Limits that `wanted` of a sample's entries reach, where it has so many."""
    for h in range(len(seen)):
        limits[h] = -np.inf
        if wanted < seen[h]:
            cost, _ = kth_cost(entries[h], seen[h], wanted, 32, spare[0], histogram)
            limits[h] = score_of(cost)
