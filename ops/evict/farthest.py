"""Which slot gives way: the one whose signature is farthest from the query's.

A slot's rank is one integer, so that the scan is a running maximum:

    bits 16 ..   Hamming distance, summed over the query heads of the group
    bits 0..15   a hash of the slot's position: ties fall anywhere, not on the oldest text

Protected slots rank -1.
"""

import numpy as np
from llvmlite import ir

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.legacy_define import lent, step
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
from ..attention.layout import SEGMENT
from .signatures import item, sign_stored, word_of
from .tables import CHOOSE, SIGN, SLOTS

MIX = 0x9E3779B1  # 2^32 / golden ratio: neighbouring positions get far hashes
_HEADS = 16  # query heads whose byte counts (up to 8 each) fit in a byte
_LANES = ir.Constant(v.vty(v.I32, 16), list(range(16)))


@emits(i32x16, i32x16, i32x16, v.INTP, v.INTP, v.INTP)
def _rank(b, distance, position, sinks, span, left):
    """Rank of 16 slots, of which `left` exist; positions sinks .. sinks+span-1 may go."""
    ty = _LANES.type
    sinks, span, left = (v.splat(b, b.trunc(n, v.I32), 16) for n in (sinks, span, left))
    tie = b.lshr(b.mul(position, v.const(ty, MIX)), v.const(ty, 16))
    rank = b.or_(b.shl(distance, v.const(ty, 16)), tie)
    may_go = b.icmp_unsigned("<", b.sub(position, sinks), span)
    exists = b.icmp_signed("<", _LANES, left)
    return b.select(b.and_(may_go, exists), rank, v.const(ty, -1))


@emits(i32x16, i32x16, i32x16, i32x16, v.INTP)
def _where(b, rank, best, where, slot):
    """`slot` in lanes whose rank beats the best so far."""
    slot = v.splat(b, b.trunc(slot, v.I32), 16)
    return b.select(b.icmp_signed(">", rank, best), slot, where)


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


@jit
def farthest(low, high, words, positions, head, codes, n_slots, sinks, span, lanes):
    """The slot of highest rank; codes uint32[2, G]; lanes int32[2, 16] is scratch.

    Reads 4 bytes a slot for each word, and 4 of its position.
    """
    heads = codes.shape[1]
    best, where = set_i32(-1), set_i32(0)
    for segment in range((n_slots + SEGMENT - 1) // SEGMENT):
        first = segment * SEGMENT
        for slot in range(first, min(first + SEGMENT, n_slots), 16):
            distance = _distance(item(low, head, slot), codes.ctypes.data, heads)
            if words == 2:
                place = codes.ctypes.data + 4 * heads
                distance = distance + _distance(item(high, head, slot), place, heads)
            position = load_i32(item(positions, head, slot), 0)
            rank = _rank(distance, position, sinks, span, n_slots - slot)
            where = _where(rank, best, where, slot)
            best = imax(best, rank)
    store(lanes.ctypes.data, 0, best)
    store(lanes.ctypes.data, 64, where)
    top = 0
    for i in range(1, 16):
        if lanes[0, i] > lanes[0, top]:
            top = i
    return lanes[1, top] + top


@step("iiiiii")
def choose_kernel(part, parts, ticket, arrays, n_slots, position, sinks, recent, words):
    """q float32[T, H, E]; taken int32[J, T or more]: for each KV head the slot of each token in
    turn; slots sign as if they had it."""
    (
        q, staged, facts, q_planes, k_planes, low, high, positions, taken, buffers, all_codes,
        lanes,
    ) = lent(arrays, CHOOSE)  # fmt: skip
    codes, n, width, planes = all_codes[part], q.shape[2], q_planes.shape[1], k_planes.ctypes.data
    heads = codes.shape[1]
    j = take(ticket)
    while j < len(taken):
        for t in range(q.shape[0]):
            for h in range(heads):
                x = q[t, j * heads + h].ctypes.data
                for w in range(words):
                    codes[w, h] = word_of(x, n, q_planes.ctypes.data, width, 32 * w)
            span = position + t - recent - sinks
            slot = farthest(
                low, high, words, positions, j, codes, n_slots, sinks, span, lanes[part]
            )  # fmt: skip
            taken[j, t] = slot
            sign_stored(
                staged, j, t, facts, planes, width, slot, low, high, buffers[part].ctypes.data
            )  # fmt: skip
            store(item(positions, j, slot), 0, np.uint32(position + t))
        j = take(ticket)


@step("iiii")
def sign_kernel(part, parts, ticket, arrays, n_heads, start, stop):
    """Signatures of slots start .. stop-1, all heads; buffers float32[threads, padded]."""
    segments, facts, planes, low, high, buffers = lent(arrays, SIGN)
    width, buffer = planes.shape[1], buffers[part].ctypes.data
    begin = start + SLOTS * take(ticket)
    while begin < stop:
        for slot in range(begin, min(begin + SLOTS, stop)):
            for j in range(n_heads):
                sign_stored(
                    segments, j, slot, facts, planes.ctypes.data, width, slot, low, high, buffer
                )  # fmt: skip
        begin = start + SLOTS * take(ticket)
