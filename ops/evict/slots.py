"""Writing slots and their positions: what staged tokens evict, and where tokens move.

Tokens of a chunk wait in the tiles of one segment. `targets[j][t]` is the slot that staged token t
takes in head j. Queries see it from t on, until another staged token takes that slot:

    evicted_by   int32 [head][slots, padded to 16][staged tokens]   the staged token that evicts it
    positions    uint32 [head][slot] in each segment of a column: the position of the slot's token
"""

import numpy as np
from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.simd import emits, i32x16, load_i8x16, load_i32, load_u16, store
from ..attention.layout import SEGMENT, TILE
from ..select.stored import tile_of
from .arguments import Evictions, Moving, Outside, Positions, Writing

_KEPT = 0x7FFFFFFF  # no staged token evicts it
LANES = ir.Constant(v.vty(v.I32, 16), list(range(16)))


@jit
def item(column, head, slot):
    """Address of a slot's item in a column of 4 bytes a slot."""
    return column[slot // SEGMENT] + 4 * (head * SEGMENT + slot % SEGMENT)


@kernel
def evictions_kernel(
    share: Share, arrays: Evictions, n_tokens: int, n_slots: int, first_staged: int
):
    """Fill `evicted_by` for n_tokens staged tokens, the first of them at item first_staged."""
    targets, evicted_by = arrays.targets, arrays.evicted_by
    for j in range(targets.shape[0]):
        for slot in range(n_slots):
            evicted_by[j, slot] = _KEPT
        for t in range(n_tokens - 1, -1, -1):
            slot = targets[j, t]
            evicted_by[j, first_staged + t] = evicted_by[j, slot]
            evicted_by[j, slot] = t


@jit
def _copy(source, target, n):
    """n bytes, a multiple of 2."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        store(target, i, load_i8x16(source, i))
    for i in range(whole, n, 2):
        store(target, i, load_u16(source, i))


@jit
def _copy_row(source, r, target, s, layout):
    """K, V and scales of row r of one tile into row s of another; addresses of the tiles."""
    k, v, scales = layout.k_row_bytes, layout.v_row_bytes, layout.scale_row_bytes
    _copy(source + r * k, target + s * k, k)
    _copy(source + layout.v_offset + r * v, target + layout.v_offset + s * v, v)
    source, target = source + layout.scale_offset, target + layout.scale_offset
    _copy(source + r * scales, target + s * scales, scales)


@kernel
def write_kernel(share: Share, arrays: Writing, n_tokens: int, position: int):
    """Write each staged token into its slot; of several for one slot the last one stays."""
    layout, targets = arrays.layout, arrays.targets
    for j in range(targets.shape[0]):
        for t in range(n_tokens):
            slot = targets[j, t]
            source = tile_of(arrays.staged, j, t, layout)
            target = tile_of(arrays.segments, j, slot, layout)
            _copy_row(source, t % TILE, target, slot % TILE, layout)
            store(item(arrays.positions, j, slot), 0, np.uint32(position + t))


@kernel
def move_kernel(share: Share, arrays: Moving):
    """Slot t of head j takes the token of slot sources[j][t] >= t, for ascending t."""
    layout, sources = arrays.layout, arrays.sources
    j = take(share.ticket)
    while j < sources.shape[0]:
        for t in range(sources.shape[1]):
            slot = sources[j, t]
            if slot != t:
                source = tile_of(arrays.segments, j, slot, layout)
                target = tile_of(arrays.segments, j, t, layout)
                _copy_row(source, slot % TILE, target, t % TILE, layout)
                _copy(item(arrays.positions, j, slot), item(arrays.positions, j, t), 4)
        j = take(share.ticket)


@kernel
def positions_kernel(
    share: Share, column: Positions, n_heads: int, slot: int, position: int, count: int
):
    """Positions position .. position+count-1 into slots slot .. slot+count-1 of every head."""
    for j in range(n_heads):
        for i in range(count):
            store(item(column.positions, j, slot + i), 0, np.uint32(position + i))


@emits(types.uint64, i32x16, v.INTP, v.INTP, v.INTP)
def _outside(b, positions, first, n, left):
    """A bit for each of 16 positions, of which `left` exist: whether it is not among the n from
    `first` on."""
    first, n, left = (v.splat(b, b.trunc(x, v.I32), 16) for x in (first, n, left))
    out = b.icmp_unsigned(">=", b.sub(positions, first), n)
    out = b.and_(out, b.icmp_signed("<", LANES, left))
    return b.zext(b.bitcast(out, ir.IntType(16)), v.I64)


@jit
def _word(positions, head, slot, n_slots, first, n):
    """The bits of 64 slots."""
    place, word = item(positions, head, slot), np.uint64(0)
    for i in range(0, 64, 16):
        bits = _outside(load_i32(place, 4 * i), first, n, n_slots - slot - i)
        word |= bits << np.uint64(i)
    return word


@kernel
def outside_kernel(share: Share, arrays: Outside, n_slots: int, first: int, stop: int):
    """Bit s of bits[j]: whether slot s of KV head j holds a position outside first .. stop-1."""
    bits = arrays.bits
    j = take(share.ticket)
    while j < len(bits):
        for slot in range(0, n_slots, 64):
            word = _word(arrays.positions, j, slot, n_slots, first, stop - first)
            bits[j, slot // 64] = word
        j = take(share.ticket)
