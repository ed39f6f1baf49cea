"""Inner operations on codes: signs of projections, and which codes are equal to one."""

import numpy as np
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.simd import at, bcast_f32, f32x16, fma, load_f32, load_u32, read, set_f32, store
from .planes import LANES

TOGETHER = 4  # vectors that are hashed together


@intrinsic
def _signs(typingctx, x):
    """Bit i: whether lane i of 16 floats is above 0."""

    def codegen(ctx, b, sig, vals):
        hits = b.fcmp_ordered(">", vals[0], v.const(vals[0].type, 0.0))
        return b.bitcast(hits, v.I16)

    return types.uint16(f32x16), codegen


@intrinsic
def equal_codes(typingctx, address, code):
    """Bit i: whether u16 i of the 64 at an address is the code."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), v.vty(v.I16, 64))
        same = b.icmp_unsigned("==", x, v.splat(b, b.trunc(vals[1], v.I16), 64))
        return b.bitcast(same, v.I64)

    return types.uint64(types.intp, types.int64), codegen


@intrinsic
def above_one(typingctx, address):
    """Bit i: whether byte i of the 64 at an address is above 1."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), v.vty(v.I8, 64))
        return b.bitcast(b.icmp_unsigned(">", x, v.const(x.type, 1)), v.I64)

    return types.uint64(types.intp), codegen


@jit
def project(rows, n_in, planes, n_panels, signs):
    """The signs of 4 vectors' products with all planes, as bits.

    rows float32[4, ...]; planes: address of float32 [panel][n_in][16]; signs uint8[4, ...].
    Each product is summed in the order of the elements.
    """
    x, to = rows.ctypes.data, signs.ctypes.data
    row, line = 4 * rows.shape[1], signs.shape[1]
    for panel in range(n_panels):
        a = b = c = d = set_f32(0.0)
        w = planes + panel * n_in * 4 * LANES
        for e in range(n_in):
            plane, at_e = load_f32(w, 4 * LANES * e), 4 * e
            a = fma(plane, bcast_f32(x, at_e), a)
            b = fma(plane, bcast_f32(x, row + at_e), b)
            c = fma(plane, bcast_f32(x, 2 * row + at_e), c)
            d = fma(plane, bcast_f32(x, 3 * row + at_e), d)
        store(to, 2 * panel, _signs(a))
        store(to, line + 2 * panel, _signs(b))
        store(to, 2 * line + 2 * panel, _signs(c))
        store(to, 3 * line + 2 * panel, _signs(d))


@jit
def code_in(signs, table, bits):
    """The code of a table from a row of signs; at most 16 bits, so that 32 hold it in any place."""
    first = table * bits
    word = np.int64(load_u32(signs, first >> 3)) >> (first & 7)
    return word & ((1 << bits) - 1)
