"""Signatures of stored keys, in columns beside them.

signature   bit i of word w is hyperplane 32 w + i
column      uint32 [kv_head][slot] in each segment: a word of the signature, or the position
"""

import numpy as np

from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address
from ...jit.simd import store
from ..attention.keys import decode_key
from ..attention.layout import SEGMENT, TILE
from ..select.signatures.encode import signature
from ..select.work import MAX_WIDTH
from .arguments import SIGNED_AT_ONCE, Signing


@jit
def item(column, head, slot):
    """Address of a slot's item in a column of 4 bytes a slot."""
    return column[slot // SEGMENT] + 4 * (head * SEGMENT + slot % SEGMENT)


@jit
def tile_of(segments, head, token, layout):
    """Address of the tile that holds a token of one head; layout: a StoredLayout."""
    head_tiles = segments[token // SEGMENT] + head * layout.head_bytes
    return head_tiles + token % SEGMENT // TILE * layout.tile_bytes


@jit
def sign_key(keys, head, token, slot, signatures, work):
    """Signature of a stored key into the columns' items of `slot`; work: as an `Encoder`'s."""
    layout, encoder = keys.layout, keys.encoder
    decode_key(tile_of(keys.segments, head, token, layout), token % TILE, layout, work)
    bits = signature(work, address(encoder.weights), encoder.widths, work + 4 * MAX_WIDTH)
    store(item(signatures.low, head, slot), 0, np.uint32(bits))
    if encoder.widths[1] > 32:
        store(item(signatures.high, head, slot), 0, np.uint32(bits >> np.uint64(32)))


@kernel
def sign_kernel(share: Share, arrays: Signing, n_heads: int, start: int, stop: int):
    """Signatures of slots start .. stop-1, all heads."""
    work = address(arrays.keys.encoder.works[share.part])
    begin = start + SIGNED_AT_ONCE * take(share.ticket)
    while begin < stop:
        for slot in range(begin, min(begin + SIGNED_AT_ONCE, stop)):
            for j in range(n_heads):
                sign_key(arrays.keys, j, slot, slot, arrays.signatures, work)
        begin = start + SIGNED_AT_ONCE * take(share.ticket)
