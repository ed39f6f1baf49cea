"""SimHash: one bit per random hyperplane, set where the vector lies on its positive side.

    planes     float32 [element][lanes]   hyperplanes in lanes: 16 bits are one vector
    signature  uint32 words, bit i of word w is hyperplane 32 w + i

Hyperplanes beyond the wanted number are zeros: their bits are 0 in every signature.
"""

import numpy as np
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import bcast_f32, emits, f32x16, fma, load_f32, set_f32, store
from ..attention.keys import decode_key
from ..attention.layout import SEGMENT, TILE
from ..attention.shape import VEC

ITEM = 4  # bytes of a column's item: a word of a signature, or a position


@emits(types.uint32, f32x16)
def _positive(b, x):
    """Bit i is set where lane i is above zero."""
    mask = b.fcmp_ordered(">", x, v.const(VEC, 0.0))
    return b.zext(b.bitcast(mask, v.I16), v.I32)


@jit
def _half(x, n, planes, lanes, first):
    """Bits of the hyperplanes first .. first+15 for the n floats at x."""
    sums = set_f32(0.0)
    for e in range(n):
        sums = fma(bcast_f32(x, 4 * e), load_f32(planes, 4 * (e * lanes + first)), sums)
    return _positive(sums)


@jit
def word_of(x, n, planes, lanes, first):
    """Bits of the hyperplanes first .. first+31 (fewer where lanes end) for the n floats at x."""
    word = np.int64(_half(x, n, planes, lanes, first))
    if first + 16 < lanes:
        word |= np.int64(_half(x, n, planes, lanes, first + 16)) << 16
    return np.uint32(word)


@jit
def item(segments, head, slot):
    """Address of a slot's item in a column of 4 bytes per token."""
    return segments[slot // SEGMENT] + ITEM * (head * SEGMENT + slot % SEGMENT)


@jit
def tile_of(segments, head, token, facts):
    """Address of the tile that holds a token of one head; facts: of `append_facts`."""
    return segments[token // SEGMENT] + head * facts[5] + token % SEGMENT // TILE * facts[4]


@jit
def sign_stored(segments, head, token, facts, planes, lanes, slot, low, high, x):
    """Signature of a stored key into item `slot` of the columns `low` and `high`.

    x: address of room for a row of floats.
    """
    blocks = facts[2]
    decode_key(tile_of(segments, head, token, facts), token % TILE, facts, x)
    store(item(low, head, slot), 0, word_of(x, 32 * blocks, planes, lanes, 0))
    if lanes > 32:
        store(item(high, head, slot), 0, word_of(x, 32 * blocks, planes, lanes, 32))
