"""From the stage into the slots: until when each token is seen, and moving those that stay.

Tokens of a chunk wait on a stage, in the tiles of one segment. `taken[j][t]` is the slot that
token t takes in head j; it is seen from query t on until another token takes that slot:

    leaves   int32 [head][slots, padded to 16][staged tokens]   the first query that sees it no more
"""

import numpy as np

from ...jit.cached import jit
from ...jit.launch.legacy_define import lent, step
from ...jit.simd import load_i8x16, load_u16, store
from ..attention.layout import TILE
from .signatures import item, tile_of
from .tables import LEAVES, POSITIONS, SETTLE

STAYS = 0x7FFFFFFF


@step("iiii")
def leaves_kernel(part, parts, ticket, arrays, n_tokens, n_slots, first_staged):
    """Fill `leaves` for n_tokens staged tokens, the first of them at item first_staged."""
    taken, leaves = lent(arrays, LEAVES)
    for j in range(taken.shape[0]):
        for slot in range(n_slots):
            leaves[j, slot] = STAYS
        for t in range(n_tokens - 1, -1, -1):
            slot = taken[j, t]
            leaves[j, first_staged + t] = leaves[j, slot]
            leaves[j, slot] = t


@jit
def _copy(source, target, n):
    """n bytes, a multiple of 2."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        store(target, i, load_i8x16(source, i))
    for i in range(whole, n, 2):
        store(target, i, load_u16(source, i))


@step("iii")
def settle_kernel(part, parts, ticket, arrays, n_tokens, position):
    """Move each staged token into its slot; of several for one slot the last one stays."""
    staged, segments, positions, facts, taken = lent(arrays, SETTLE)
    k_row, v_row, v_offset, scales, scale_row = facts[6], facts[7], facts[8], facts[9], facts[11]
    for j in range(taken.shape[0]):
        for t in range(n_tokens):
            slot = taken[j, t]
            source = tile_of(staged, j, t, facts)
            target = tile_of(segments, j, slot, facts)
            r, s = t % TILE, slot % TILE
            _copy(source + r * k_row, target + s * k_row, k_row)
            _copy(source + v_offset + r * v_row, target + v_offset + s * v_row, v_row)
            _copy(source + scales + r * scale_row, target + scales + s * scale_row, scale_row)
            store(item(positions, j, slot), 0, np.uint32(position + t))


@step("iiiii")
def positions_kernel(part, parts, ticket, arrays, n_heads, slot, position, count):
    """Positions position .. position+count-1 into slots slot .. slot+count-1 of every head."""
    (positions,) = lent(arrays, POSITIONS)
    for j in range(n_heads):
        for i in range(count):
            store(item(positions, j, slot + i), 0, np.uint32(position + i))
