"""Signatures of stored keys, and which token is evicted: the one farthest from the query.

    signature   bit i of word w is hyperplane 32 w + i
    column      uint32 [kv_head][slot] in each segment: a word of the signature, or the position

A slot's rank is one integer, so that the scan is a running maximum:

    bits 16 ..   Hamming distance, summed over the query heads of the group
    bits 0..15   a hash of the token's position, so that ties fall on no particular age

Protected tokens rank -1.
"""

from typing import NamedTuple

import numpy as np

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address, of_thread
from ...jit.simd import (
    bcast_i32_i8,
    bits_i32,
    ctpop,
    emits,
    i32x16,
    imax,
    load_i8,
    load_i32,
    set_i8,
    set_i32,
    store,
)
from ..attention.keys import decode_key
from ..attention.layout import SEGMENT, TILE
from ..select.signatures.encode import signature
from ..select.stored import tile_of
from ..select.work import MAX_WIDTH
from .arguments import SIGNED_AT_ONCE, Choice, Protected, Signing
from .slots import LANES, item

MIX = 0x9E3779B1  # 2^32 / golden ratio: hashes of neighbouring positions lie far apart
_HEADS = 16  # query heads whose byte counts (up to 8 each) fit in a byte


@jit
def _key_bits(keys, head, token, work):
    """Signature of a stored key; work: as an `Encoder`'s."""
    layout, encoder = keys.layout, keys.encoder
    decode_key(tile_of(keys.segments, head, token, layout), token % TILE, layout, work)
    weights = address(encoder.weights) + 4 * keys.stride * head
    return signature(work, weights, encoder.widths, work + 4 * MAX_WIDTH)


@jit
def _put_bits(bits, width, head, slot, signatures):
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
                _put_bits(_key_bits(keys, j, slot, work), width, j, slot, signatures)
        begin = start + SIGNED_AT_ONCE * take(share.ticket)


@emits(i32x16, i32x16, i32x16, v.INTP, v.INTP, v.INTP)
def _rank(b, distance, position, first, n, left):
    """Rank of 16 slots, of which `left` exist; positions first .. first+n-1 are evictable."""
    ty = LANES.type
    first, n, left = (v.splat(b, b.trunc(x, v.I32), 16) for x in (first, n, left))
    tie = b.lshr(b.mul(position, v.const(ty, MIX)), v.const(ty, 16))
    rank = b.or_(b.shl(distance, v.const(ty, 16)), tie)
    evictable = b.icmp_unsigned("<", b.sub(position, first), n)
    exists = b.icmp_signed("<", LANES, left)
    return b.select(b.and_(evictable, exists), rank, v.const(ty, -1))


@emits(i32x16, i32x16, i32x16, i32x16, v.INTP)
def _better_slots(b, rank, best, slots, slot):
    """`slot` in lanes whose rank beats the best so far."""
    slot = v.splat(b, b.trunc(slot, v.I32), 16)
    return b.select(b.icmp_signed(">", rank, best), slot, slots)


@jit
def _distance(words, codes, heads):
    """Hamming distances of 16 words to `heads` query words, summed; addresses both."""
    signatures, total = load_i8(words, 0), set_i32(0)
    for first in range(0, heads, _HEADS):
        counts = set_i8(0)
        for h in range(first, min(first + _HEADS, heads)):
            counts = counts + ctpop(signatures ^ bcast_i32_i8(codes, 4 * h))
        pairs = bits_i32(counts)
        pairs = (pairs & 0xFF00FF) + ((pairs >> 8) & 0xFF00FF)
        total = total + (pairs & 0xFFFF) + (pairs >> 16)
    return total


class Evictable(NamedTuple):
    """Of n_slots slots, those with tokens of positions first .. first+n_positions-1."""

    n_slots: int
    first: int
    n_positions: int


@jit
def farthest(signatures, positions, head, codes, bits, evictable, lanes):
    """The evictable slot of highest rank; codes uint32[2, G]; lanes int32[2, 16] is scratch.

    Reads 4 bytes a slot for each word of `bits`, and 4 of its position.
    """
    heads, low, n_slots = codes.shape[1], address(codes), evictable.n_slots
    best, slots = set_i32(-1), set_i32(0)
    for segment in range((n_slots + SEGMENT - 1) // SEGMENT):
        first = segment * SEGMENT
        for slot in range(first, min(first + SEGMENT, n_slots), 16):
            distance = _distance(item(signatures.low, head, slot), low, heads)
            if bits > 32:
                words = item(signatures.high, head, slot)
                distance = distance + _distance(words, low + 4 * heads, heads)
            position = load_i32(item(positions, head, slot), 0)
            left = n_slots - slot
            rank = _rank(distance, position, evictable.first, evictable.n_positions, left)
            slots = _better_slots(rank, best, slots, slot)
            best = imax(best, rank)
    store(address(lanes), 0, best)
    store(address(lanes), 64, slots)
    top = 0
    for i in range(1, 16):
        if lanes[0, i] > lanes[0, top]:
            top = i
    return lanes[1, top] + top


@jit
def _sign_queries(q, first, encoder, codes, work):
    """Signatures of a token's query heads from `first` on, q float32[H, E], a head a column."""
    for h in range(codes.shape[1]):
        bits = signature(
            address(q[first + h]), address(encoder.weights), encoder.widths, work + 4 * MAX_WIDTH
        )
        codes[0, h] = np.uint32(bits)
        codes[1, h] = np.uint32(bits >> np.uint64(32))


@kernel
def choose_kernel(
    share: Share,
    choice: Choice,
    n_slots: int,
    position: int,
    protected: Protected,
    by_key: int,
):
    """For each KV head the target slot of each staged token in turn, positions from `position` on.

    Slots get the signatures and positions of the tokens that they will hold. by_key: whether a
    token's key stands for each of its queries.
    """
    q, targets, positions = choice.q, choice.targets, choice.positions
    encoder, scratch = choice.queries, of_thread(choice.scratch, share.part)
    codes, bits, work = scratch.codes, encoder.widths[1], address(encoder.works[share.part])
    j = take(share.ticket)
    while j < len(targets):
        for t in range(q.shape[0]):
            key = _key_bits(choice.staged, j, t, work)
            if by_key:
                for h in range(codes.shape[1]):
                    codes[0, h] = np.uint32(key)
                    codes[1, h] = np.uint32(key >> np.uint64(32))
            else:
                _sign_queries(q[t], j * codes.shape[1], encoder, codes, work)
            n_positions = position + t - protected.recent - protected.sinks
            evictable = Evictable(n_slots, protected.sinks, n_positions)
            slot = farthest(choice.signatures, positions, j, codes, bits, evictable, scratch.lanes)
            targets[j, t] = slot
            _put_bits(key, bits, j, slot, choice.signatures)
            store(item(positions, j, slot), 0, np.uint32(position + t))
        j = take(share.ticket)
