"""Which tokens of a segment form a block: the segment is halved again and again, down to 32 keys.

A part is split at the median of its keys' projections on the direction in which they vary most: the
first principal component, as two iterations of the power method find it from the key farthest from
the mean. Of equal projections the first belong to the half that comes first.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.simd import fma, hsum, load_f32, set_f32, store
from ...attention.layout import SEGMENT
from ..best import entry_of, kth_cost
from ..scores import cost_of, float_bits
from .layout import BLOCK

_ITERATIONS = (
    2  # of the power method: 4 find 1% more of the softmax's mass and take 1.5 times as long
)


@jit
def _add_row(x, row, width, factor, total):
    """total += factor * row; addresses of floats."""
    for i in range(0, 4 * width, 64):
        element = load_f32(x, 4 * width * row + i)
        store(total, i, fma(element, set_f32(factor), load_f32(total, i)))


@jit
def _scale(y, width, factor):
    for i in range(0, 4 * width, 64):
        store(y, i, load_f32(y, i) * set_f32(factor))


@jit
def _clear(y, width):
    for i in range(0, 4 * width, 64):
        store(y, i, set_f32(0.0))


@jit
def _dot(x, y, width):
    """The dot product of two vectors of floats at addresses."""
    total = set_f32(0.0)
    for i in range(0, 4 * width, 64):
        total = fma(load_f32(x, i), load_f32(y, i), total)
    return hsum(total)


@jit
def _mean_of(x, order, width, mean):
    """The mean of the rows `order` of x float32[1024, width]; addresses."""
    _clear(mean, width)
    for row in order:
        _add_row(x, np.int64(row), width, np.float32(1.0), mean)
    _scale(mean, width, np.float32(1.0) / np.float32(len(order)))


@jit
def _toward_farthest(x, order, width, mean, direction):
    """direction = the row farthest from the mean, minus the mean."""
    most, far = np.float32(-1.0), np.int64(order[0])
    middle = _dot(mean, mean, width)
    for row in order:
        y = x + 4 * width * np.int64(row)
        distance = _dot(y, y, width) - np.float32(2.0) * _dot(y, mean, width) + middle
        if distance > most:
            most, far = distance, np.int64(row)
    _clear(direction, width)
    _add_row(x, far, width, np.float32(1.0), direction)
    _add_row(mean, 0, width, np.float32(-1.0), direction)


@jit
def _iterate(x, order, width, mean, direction, product):
    """direction = C direction, scaled to length 1; C: covariance of the rows."""
    middle, total = _dot(mean, direction, width), np.float32(0.0)
    _clear(product, width)
    for row in order:
        along = _dot(x + 4 * width * np.int64(row), direction, width) - middle
        _add_row(x, np.int64(row), width, along, product)
        total += along
    _add_row(mean, 0, width, -total, product)
    length = np.sqrt(_dot(product, product, width))
    if length > np.float32(0.0):
        _clear(direction, width)
        _add_row(product, 0, width, np.float32(1.0) / length, direction)


@jit
def _halve(x, order, width, direction, entries, spare, histogram):
    """Move the half of the rows with the largest projections to the front."""
    n = len(order)
    for i in range(n):
        along = _dot(x + 4 * width * np.int64(order[i]), direction, width)
        entries[i] = entry_of(cost_of(np.uint64(float_bits(along))), order[i])
    limit, below = kth_cost(entries, n, n // 2, 32, spare, histogram)
    ties, front, back = n // 2 - below, 0, n // 2
    for i in range(n):
        cost = entries[i] >> np.uint64(32)
        if cost < limit or (cost == limit and ties > 0):
            ties -= cost == limit
            order[front] = np.uint16(entries[i])
            front += 1
        else:
            order[back] = np.uint16(entries[i])
            back += 1


@jit
def put_in_order(x, width, order, scratch, entries, spare, histogram):
    """Write the rows of x float32[1024, width] (an address) to order uint16[1024], by block.

    scratch: address of 3 * width floats; entries, spare: room for 1,024.
    """
    mean, direction, product = scratch, scratch + 4 * width, scratch + 8 * width
    for i in range(SEGMENT):
        order[i] = i
    size = SEGMENT
    while size > BLOCK:
        for at in range(0, SEGMENT, size):
            part = order[at : at + size]
            _mean_of(x, part, width, mean)
            _toward_farthest(x, part, width, mean, direction)
            for _ in range(_ITERATIONS):
                _iterate(x, part, width, mean, direction, product)
            _halve(x, part, width, direction, entries, spare, histogram)
        size //= 2
