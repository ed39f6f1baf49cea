"""The sums of a segment's sketches, and which tokens may reach a limit: the inner operation.

    estimate = factor * sum, so a token needs sum >= limit / factor

To divide for each token would cost too much. Instead the leading bits of the factors put them into
16 classes; for each class and query, the least sum that can reach the limit is that of the greatest
factor of the class, or of the least one if the limit is negative. A mask has all tokens whose
estimate reaches the limit, and few others.

Sums saturate: they go from -127 to 127, see `queries`.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.views import address
from ....jit.simd import at, read, set_f32, store, write
from ...attention.layout import SEGMENT
from ..lookup import AT_ONCE, WIDEST, add_saturated, half_bytes_of, look_up
from ..masks import MASK_BYTES, bits_of
from ..prefetch import prefetch_lines

# Of f16 bits: 32 classes for each power of 2; factors of one class differ by 1.6 to 3.1%.
_CLASS_SHIFT = 5
_INFINITY = 0x7C00


def class_bytes(b, factors, lowest):
    """The classes of 64 factors f16, from 0 for `lowest` and all below on."""
    bits = read(b, factors, v.vty(v.I16, 64))
    first = v.splat(b, b.shl(b.trunc(lowest, v.I16), ir.Constant(v.I16, _CLASS_SHIFT)), 64)
    bits = v.call(b, "llvm.usub.sat.v64i16", bits.type, bits, first)
    return b.trunc(b.lshr(bits, v.const(bits.type, _CLASS_SHIFT)), v.vty(v.I8, 64))


@intrinsic
def sums_64(typingctx, kind, words, factors, lowest, tables, limits, masks, sums):
    """sums[query][64 tokens] int8 = sums over half bytes of the query's table, each addition
    saturated; addresses all.

    Bit t of masks[query]: whether its sum is above limits[query][class of its factor - lowest].
    limits: int8 [query][64], of which the first 16 are used.
    """

    def codegen(ctx, b, sig, vals):
        words, factors, tables, limits, masks, sums = (at(b, vals[i]) for i in (1, 2, 4, 5, 6, 7))
        classes = class_bytes(b, factors, vals[3])
        places = [ir.Constant(v.I64, t * kind.bits // 8) for t in range(0, 64, AT_ONCE)]
        index = list(zip(*(half_bytes_of(b, b.gep(words, [at]), kind.bits) for at in places)))
        for h in range(kind.queries):
            total: list[ir.Value] = []
            for i, half_bytes in enumerate(index):
                table = read(b, tables, v.vty(v.I8, 16), h * 4 * kind.bits + 16 * i)
                d = [look_up(b, table, x) for x in half_bytes]
                total = [add_saturated(b, x, y) for x, y in zip(total, d)] if total else d
            limit, mask = read(b, limits, v.vty(v.I8, 16), 64 * h), ir.Constant(v.I64, 0)
            for i, x in enumerate(total):
                # No sum is -128, so that all are above a limit of -128.
                least = v.const(WIDEST, -127)
                raised = v.call(b, f"llvm.smax.v{AT_ONCE}i8", WIDEST, x, least)
                write(b, raised, sums, SEGMENT * h + AT_ONCE * i)
                part = v.shuffle(b, classes, range(AT_ONCE * i, AT_ONCE * (i + 1)))
                above = b.icmp_signed(">", raised, look_up(b, limit, part))
                above = b.bitcast(above, ir.IntType(AT_ONCE))
                above = above if AT_ONCE == 64 else b.zext(above, v.I64)
                mask = b.or_(mask, b.shl(above, ir.Constant(v.I64, AT_ONCE * i)))
            write(b, mask, masks, h * MASK_BYTES)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n, n, n, n), codegen


def _extreme(name):
    """The greatest ("smax") or the least ("smin") of SEGMENT f16 at an address, as their bits.

    No factor is negative, so their order is that of their bits as integers.
    """

    @intrinsic
    def extreme(typingctx, factors):
        def codegen(ctx, b, sig, vals):
            place, wide = at(b, vals[0]), v.vty(v.I16, 64)
            extreme = read(b, place, wide)
            for t in range(64, SEGMENT, 64):
                x = read(b, place, wide, 2 * t)
                extreme = v.call(b, f"llvm.{name}.v64i16", wide, extreme, x)
            extreme = v.call(b, f"llvm.vector.reduce.{name}.v64i16", v.I16, extreme)
            return b.zext(extreme, v.I64)

        return types.int64(types.intp), codegen

    return extreme


_greatest, _least = _extreme("smax"), _extreme("smin")


@intrinsic
def _class_ends(typingctx, lowest, least):
    """The least and the greatest f16 of each of 16 classes from `lowest` on, as float32; those of
    the lowest class begin with the f16 of the bits `least`."""

    def codegen(ctx, b, sig, vals):
        first = v.splat(b, b.trunc(vals[0], v.I16), 16)
        i16, shift = first.type, v.const(first.type, _CLASS_SHIFT)
        below = b.shl(b.add(first, ir.Constant(i16, [*range(16)])), shift)
        above = b.sub(b.add(below, v.const(i16, 1 << _CLASS_SHIFT)), v.const(i16, 1))
        below = b.insert_element(below, b.trunc(vals[1], v.I16), ir.Constant(v.I32, 0))
        ends = []
        for end in (below, above):
            bits = v.call(b, "llvm.smin.v16i16", i16, end, v.const(i16, _INFINITY))
            ends.append(b.fpext(b.bitcast(bits, v.vty(v.F16, 16)), v.vty(v.F32, 16)))
        return ctx.make_tuple(b, sig.return_type, ends)

    return types.UniTuple(v.f32x16, 2)(types.int64, types.int64), codegen


@jit
def set_limits(lowest, least, limits, bytes_at):
    """The least sum that can reach each query's limit, less one, for each class of factors.

    least: bits of the least factor; bytes_at: address of int8 [query][64], of which 16 are written.
    """
    begins, ends = _class_ends(lowest, least)
    for h in range(len(limits)):
        # A factor of 0 reaches every limit up to 0: not 0 / 0.
        by, limit = v.vmax(begins, set_f32(1e-35)), min(limits[h], np.float32(-1e-30))
        if limits[h] > 0.0:
            by, limit = ends, limits[h]
        needed = v.vmax(v.vmin(set_f32(limit) / by, set_f32(128.0)), set_f32(-127.0))
        # One less than needed, so that no rounding loses a token; 127: no sum is above it.
        store(bytes_at, 64 * h, v.to_i8(needed - set_f32(1.0)))


@jit
def lowest_class(factors):
    """The lowest of the 16 classes of a segment's factors, and the bits of the least factor."""
    return max((_greatest(factors) >> _CLASS_SHIFT) - 15, 0), _least(factors)


class Sketches(NamedTuple):
    """Addresses of the sketches of one KV head in one segment."""

    bits: int
    factors: int


@jit
def sum_segment(kind, sketches, later, tables, limits, scan, buffer):
    """Sums and masks of the 1,024 tokens of a segment; prefetches the sketches of a `later` one.

    tables, limits: of the queries; scan: `Scan` of this thread, whose `buffer` is written.
    """
    n_bytes, table, below = bits_of(kind) // 8, address(tables), address(scan.limits)
    masks, sums = address(scan.masks[buffer]), address(scan.sums[buffer])
    lowest, least = lowest_class(sketches.factors)
    set_limits(lowest, least, limits, below)
    for t in range(0, SEGMENT, 64):
        prefetch_lines(later.bits, t * n_bytes, 64 * n_bytes)
        prefetch_lines(later.factors, 2 * t, 128)
        sums_64(
            kind, sketches.bits + t * n_bytes, sketches.factors + 2 * t, lowest, table, below,
            masks + t // 8, sums + t,
        )  # fmt: skip
