"""Halves of a segment: its signatures turned, so that bit b of 512 of them is one vector.

Rows of signatures become planes of bits: by matrices of 8 x 8 bits where the CPU has GFNI, else by
a mask for each bit. Then what all queries share of the planes is written. A query has one of eight
values in a group of three bits; for each value, the number of bits that differ from it has a low
bit, which depends on whether the value has an even number of bits, and a high one.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .....jit import simd as v
from .....jit.cached import jit
from .....jit.simd import at, read, store, write
from ....attention.layout import SEGMENT
from ...lookup import bytes_of
from ...masks import WORDS, bits_of, inside
from ...work import LOTS
from ..lots import lot, lots_of
from .layout import (
    LOTS_AT,
    OF_GROUP,
    SUMS_AT,
    VECTOR,
    VECTOR_BYTES,
    groups_of,
    half_bytes,
    logic,
    truth_table,
)

GFNI = "gfni" in v.FEATURES  # transposes 8 x 8 bits
# [n of `lots`, 2 or 4][what lots are combined with][lot]: which of 64 tokens have a lower one
_LOWER = np.array(
    [
        [[sum(1 << t for t in range(64) if lot.py_func(n, key, t) < low) for low in range(LOTS + 1)]
        for key in range(LOTS)]
        for n in (2, LOTS)
    ],
    np.uint64,
)  # fmt: skip


@intrinsic
def _write_bits(typingctx, kind, words, planes):
    """planes[bit][0] = bit of 64 signatures, for each of their bits."""

    def codegen(ctx, b, sig, vals):
        words, planes = (at(b, x) for x in vals[1:])
        for p, x in enumerate(bytes_of(b, words, kind.bits)):
            for bit in range(8):
                own = b.and_(x, v.const(x.type, 1 << bit))
                found = b.icmp_unsigned("!=", own, v.const(x.type, 0))
                write(b, b.bitcast(found, v.I64), planes, 8 * WORDS * (8 * p + bit))
        return ctx.get_dummy_value()

    return types.void(kind, types.intp, types.intp), codegen


@intrinsic
def _write_planes(typingctx, kind, words, planes):
    """planes[bit][8 words] = bit of 512 signatures, by matrices of 8 x 8 bits and then of words."""

    def codegen(ctx, b, sig, vals):
        words, planes = (at(b, x) for x in vals[1:])
        # The instruction multiplies 8 x 8 bits with each of 8 bytes; of the product with single
        # bits, byte i has bit i of the 8 rows, the last one lowest.
        single = b.bitcast(v.const(VECTOR, 0x8040201008040201), v.vty(v.I8, 64))
        last_first = [i ^ 7 for i in range(64)]
        by_bit = [8 * (i % 8) + i // 8 for i in range(64)]
        rows: list[list[ir.Value]] = [[] for _ in range(kind.bits // 8)]
        for t in range(0, 512, 64):
            here = at(b, words, t * kind.bits // 8)
            for p, x in enumerate(bytes_of(b, here, kind.bits)):
                matrix, zero = v.shuffle(b, x, last_first), ir.Constant(v.I8, 0)
                own = v.call(b, "llvm.x86.vgf2p8affineqb.512", x.type, single, matrix, zero)
                rows[p].append(b.bitcast(v.shuffle(b, own, by_bit), VECTOR))
        for p, own in enumerate(rows):
            for bit, x in enumerate(_transposed(b, own)):
                write(b, x, planes, 8 * WORDS * (8 * p + bit))
        return ctx.get_dummy_value()

    return types.void(kind, types.intp, types.intp), codegen


def _transposed(b, rows):
    """Eight vectors of eight words as a matrix, transposed."""
    for step in (1, 2, 4):
        low = [i if not i & step else i - step + 8 for i in range(8)]
        high = [i + step if not i & step else i + 8 for i in range(8)]
        out = [*rows]
        for i in range(8):
            if not i & step:
                out[i] = v.shuffle(b, rows[i], low, rows[i + step])
                out[i + step] = v.shuffle(b, rows[i], high, rows[i + step])
        rows = out
    return rows


@intrinsic
def _write_sums(typingctx, kind, planes, half):
    """What queries share of the 512 tokens of these planes."""

    def codegen(ctx, b, sig, vals):
        planes, half = (at(b, x) for x in vals[1:])
        for group in range(groups_of(kind.bits)):
            own = range(3 * group, min(3 * group + 3, kind.bits))
            x = [read(b, planes, VECTOR, 8 * WORDS * bit) for bit in own]
            x += [v.const(VECTOR, 0)] * (3 - len(x))
            to = SUMS_AT + VECTOR_BYTES * OF_GROUP * group
            for odd in (0, 1):
                table = truth_table(lambda bits, odd=odd: (sum(bits) + odd) & 1)
                write(b, logic(b, table, *x), half, to + VECTOR_BYTES * odd)
            for q in range(8):
                mine = [q >> i & 1 for i in range(3)]
                table = truth_table(
                    lambda bits, mine=mine: sum(m != n for m, n in zip(bits, mine)) >= 2
                )
                write(b, logic(b, table, *x), half, to + VECTOR_BYTES * (2 + q))
        return ctx.get_dummy_value()

    return types.void(kind, types.intp, types.intp), codegen


@jit
def slice_segment(kind, words, segment, first, last, planes, halves):
    """Make the halves of the segment whose signatures are at `words`, but for their lots."""
    item_bytes, n_bytes = bits_of(kind) // 8, half_bytes(kind)
    if GFNI:
        for t in range(0, SEGMENT, 512):
            _write_planes(kind, words + t * item_bytes, planes + t // 8)
    else:
        for t in range(0, SEGMENT, 64):
            _write_bits(kind, words + t * item_bytes, planes + t // 8)
    for w in range(WORDS):
        place = halves + w // 8 * n_bytes + w % 8 * 8
        store(place, 0, ~inside(segment * WORDS + w, first, last))
    for i in range(2):
        _write_sums(kind, planes + i * VECTOR_BYTES, halves + i * n_bytes)


@jit
def slice_lots(kind, key, halves):
    """Write the lots of a segment with this key into its halves."""
    n, n_bytes = lots_of(kind), half_bytes(kind)
    for w in range(WORDS):
        own = (np.int64(key) >> 2 * w) & (n - 1)
        place = halves + w // 8 * n_bytes + w % 8 * 8 + LOTS_AT
        for below in range(n + 1):
            store(place, VECTOR_BYTES * below, _LOWER[n >> 2, own, below])
