"""Which slots hold the first and the last tokens, by their positions: a bit for each slot."""

import numpy as np
from llvmlite import ir
from numba import types

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.simd import emits, i32x16, load_i32
from .arguments import Outside
from .signatures import item

_LANES = ir.Constant(v.vty(v.I32, 16), list(range(16)))


@emits(types.uint64, i32x16, v.INTP, v.INTP, v.INTP)
def _outside(b, positions, first, n, left):
    """A bit for each of 16 positions, of which `left` exist: whether it is not one of `n` from
    `first` on."""
    first, n, left = (v.splat(b, b.trunc(x, v.I32), 16) for x in (first, n, left))
    out = b.icmp_unsigned(">=", b.sub(positions, first), n)
    found = b.and_(out, b.icmp_signed("<", _LANES, left))
    return b.zext(b.bitcast(found, ir.IntType(16)), v.I64)


@jit
def _word(positions, head, slot, n_slots, first, n):
    """The bits of 64 slots."""
    here, word = item(positions, head, slot), np.uint64(0)
    for i in range(0, 64, 16):
        some = _outside(load_i32(here, 4 * i), first, n, n_slots - slot - i)
        word |= some << np.uint64(i)
    return word


@kernel
def outside_kernel(share: Share, arrays: Outside, n_slots: int, first: int, last: int):
    """Bit s of bits[j]: whether slot s of KV head j holds a position outside first .. last-1."""
    bits = arrays.bits
    j = take(share.ticket)
    while j < len(bits):
        for slot in range(0, n_slots, 64):
            word = _word(arrays.positions, j, slot, n_slots, first, last - first)
            bits[j, slot // 64] = word
        j = take(share.ticket)
