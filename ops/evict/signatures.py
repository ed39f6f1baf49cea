"""SimHash: one bit per random hyperplane, set where the vector lies on its positive side.

    planes     float32 [element][lanes]   hyperplanes in lanes: 16 bits are one vector
    signature  uint32 words, bit i of word w is hyperplane 32 w + i

Hyperplanes beyond the wanted number are zeros: their bits are 0 in every signature.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from .. import simd as v
from ..attention.layout import KV_TYPES, SEGMENT, TILE
from ..attention.shape import VEC, at, read_row, write
from ..cache import jit
from ..simd import bcast_f32, emits, f32x16, fma, load_f32, set_f32, store

ITEM = 4  # bytes of a column's item: a word of a signature, or a position


@emits(types.uint32, f32x16)
def _positive(b, x):
    """Bit i is set where lane i is above zero."""
    mask = b.fcmp_ordered(">", x, v.const(VEC, 0.0))
    return b.zext(b.bitcast(mask, v.I16), v.I32)


@intrinsic(prefer_literal=True)
def decode_block(typingctx, kind, row, scale, out):
    """32 stored elements at `row` (their scale at `scale`) to floats at `out`; addresses all."""
    name = KV_TYPES[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        row, scale, out = (at(b, n) for n in vals[1:])
        for i, x in enumerate(read_row(b, name, row, scale, 0, 2)):
            write(b, out, 64 * i, x)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen


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
def sign_stored(segments, head, token, facts, planes, lanes, slot, low, high, buffer):
    """Signature of a stored key into item `slot` of the columns `low` and `high`."""
    kind, blocks, scale_row = facts[0], facts[2], facts[11]
    tile = tile_of(segments, head, token, facts)
    row = tile + token % TILE * facts[6]
    scales = tile + facts[9] + token % TILE * scale_row
    x = buffer.ctypes.data
    for i in range(blocks):
        if kind == 0:
            decode_block(0, row + 64 * i, scales, x + 128 * i)
        elif kind == 1:
            decode_block(1, row + 32 * i, scales + 2 * i, x + 128 * i)
        else:
            decode_block(2, row + 16 * i, scales + 2 * i, x + 128 * i)
    store(item(low, head, slot), 0, word_of(x, 32 * blocks, planes, lanes, 0))
    if lanes > 32:
        store(item(high, head, slot), 0, word_of(x, 32 * blocks, planes, lanes, 32))
