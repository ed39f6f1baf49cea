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
def key_bits(keys, head, token, work):
    """Signature of a stored key; work: as an `Encoder`'s."""
    layout, encoder = keys.layout, keys.encoder
    decode_key(tile_of(keys.segments, head, token, layout), token % TILE, layout, work)
    weights = address(encoder.weights) + 4 * keys.stride * head
    return signature(work, weights, encoder.widths, work + 4 * MAX_WIDTH)


@jit
def put_bits(bits, width, head, slot, signatures):
    """Store a signature of up to `width` bits as the columns' items of `slot`."""
    store(item(signatures.low, head, slot), 0, np.uint32(bits))
    if width > 32:
        store(item(signatures.high, head, slot), 0, np.uint32(bits >> np.uint64(32)))


@kernel
def sign_kernel(share: Share, arrays: Signing, n_heads: int, start: int, stop: int):
    """Signatures of slots start .. stop-1, all heads."""
    keys, signatures = arrays.keys, arrays.signatures
    work, width = address(keys.encoder.works[share.part]), keys.encoder.widths[1]
    begin = start + SIGNED_AT_ONCE * take(share.ticket)
    while begin < stop:
        for slot in range(begin, min(begin + SIGNED_AT_ONCE, stop)):
            for j in range(n_heads):
                put_bits(key_bits(keys, j, slot, work), width, j, slot, signatures)
        begin = start + SIGNED_AT_ONCE * take(share.ticket)
