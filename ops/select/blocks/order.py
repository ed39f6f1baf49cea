"""Which tokens of a segment form a block: the segment is halved again and again, down to 32 keys.

A part is split at the median of its keys' projections on the direction in which they vary most: the
first principal component, as two iterations of the power method find it from the key farthest from
the mean. Of equal projections the first belong to the half that comes first.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.simd import fma, hsum, load_f32, load_u16, set_f32, store
from ...attention.layout import SEGMENT
from ..best import entry_of, kth_cost
from ..scores import cost_of, float_bits
from .layout import BLOCK

_ITERATIONS = (
    2  # of the power method: 4 find 1% more of the softmax's mass and take 1.5 times as long
)


@jit
def _add_row(x, row, bits, factor, total):
    """total += factor * row; addresses of floats."""
    for i in range(0, 4 * bits, 64):
        element = load_f32(x, 4 * bits * row + i)
        store(total, i, fma(element, set_f32(factor), load_f32(total, i)))


@jit
def _scale(y, bits, factor):
    for i in range(0, 4 * bits, 64):
        store(y, i, load_f32(y, i) * set_f32(factor))


@jit
def _clear(y, bits):
    for i in range(0, 4 * bits, 64):
        store(y, i, set_f32(0.0))


@jit
def dot(x, y, bits):
    """The dot product of two vectors of floats at addresses."""
    total = set_f32(0.0)
    for i in range(0, 4 * bits, 64):
        total = fma(load_f32(x, i), load_f32(y, i), total)
    return hsum(total)


@jit
def mean_of(x, order, bits, mean):
    """The mean of the rows `order` of x float32[1024, bits]; addresses."""
    _clear(mean, bits)
    for row in order:
        _add_row(x, np.int64(row), bits, np.float32(1.0), mean)
    _scale(mean, bits, np.float32(1.0) / np.float32(len(order)))


@jit
def _toward_farthest(x, order, bits, mean, direction):
    """direction = the row farthest from the mean, minus the mean."""
    most, far = np.float32(-1.0), np.int64(order[0])
    middle = dot(mean, mean, bits)
    for row in order:
        y = x + 4 * bits * np.int64(row)
        distance = dot(y, y, bits) - np.float32(2.0) * dot(y, mean, bits) + middle
        if distance > most:
            most, far = distance, np.int64(row)
    _clear(direction, bits)
    _add_row(x, far, bits, np.float32(1.0), direction)
    _add_row(mean, 0, bits, np.float32(-1.0), direction)


@jit
def _iterate(x, order, bits, mean, direction, product):
    """direction = C direction, scaled to length 1; C: covariance of the rows."""
    middle, total = dot(mean, direction, bits), np.float32(0.0)
    _clear(product, bits)
    for row in order:
        along = dot(x + 4 * bits * np.int64(row), direction, bits) - middle
        _add_row(x, np.int64(row), bits, along, product)
        total += along
    _add_row(mean, 0, bits, -total, product)
    length = np.sqrt(dot(product, product, bits))
    if length > np.float32(0.0):
        _clear(direction, bits)
        _add_row(product, 0, bits, np.float32(1.0) / length, direction)


@jit
def _halve(x, order, bits, direction, entries, spare, histogram):
    """Move the half of the rows with the largest projections to the front."""
    n = len(order)
    for i in range(n):
        along = dot(x + 4 * bits * np.int64(order[i]), direction, bits)
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
def put_in_order(x, bits, order, scratch, entries, spare, histogram):
    """Write the rows of x float32[1024, bits] (an address) to order uint16[1024], by block.

    scratch: address of 3 * bits floats; entries, spare: room for 1,024.
    """
    mean, direction, product = scratch, scratch + 4 * bits, scratch + 8 * bits
    for i in range(SEGMENT):
        order[i] = i
    size = SEGMENT
    while size > BLOCK:
        for at in range(0, SEGMENT, size):
            part = order[at : at + size]
            mean_of(x, part, bits, mean)
            _toward_farthest(x, part, bits, mean, direction)
            for _ in range(_ITERATIONS):
                _iterate(x, part, bits, mean, direction, product)
            _halve(x, part, bits, direction, entries, spare, histogram)
        size //= 2


@jit
def token_at(order, place):
    """The token of the segment that stands at a place of the stored order (an address).

    A file may say anything: what it says is always a token of the segment.
    """
    return np.int64(load_u16(order, 2 * place)) & (SEGMENT - 1)
