"""Texts whose samples say little of the rest."""

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.select.sampling import SMALL_SAMPLE, STRIDE, put_order

N_SEGMENTS = 41  # enough for both samples


def _sampled(stride: int) -> np.ndarray:
    """Whether each token is of a segment that is looked at first, one of `stride`."""
    order = np.zeros(N_SEGMENTS, np.int64)
    _, n = put_order.py_func(0, N_SEGMENTS * SEGMENT, stride, order)
    return np.isin(np.arange(N_SEGMENTS), order[:n]).repeat(SEGMENT)


@pytest.fixture(params=["long in four segments", "long in an eighth", "longer elsewhere"])
def misleading(request) -> np.ndarray:
    """How long the key of each of 41 segments' tokens is."""
    few, eighth = _sampled(N_SEGMENTS // SMALL_SAMPLE), _sampled(STRIDE)
    lengths = np.ones(N_SEGMENTS * SEGMENT)
    if request.param == "long in four segments":  # the larger sample has none above their limit
        lengths[few & ~eighth] = 4
    elif request.param == "long in an eighth":  # all others have none above its limit
        lengths[eighth] = 4
    else:  # of the larger sample much is above their limit and not among the best
        lengths[~eighth] = 1.2
        lengths[np.flatnonzero(eighth)[::10]] = 10
        lengths[few] = 0.2
    return lengths
