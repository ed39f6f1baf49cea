"""The sums of a segment's sketches, and which tokens may reach a limit: the inner operation.

    estimate = factor * sum, so a token needs sum >= limit / factor

To divide for each token would cost too much. Instead the leading bits of the factors put them into
16 classes; for each class and query, the least sum that can reach the limit is that of the greatest
factor of the class. A mask has all tokens whose estimate reaches the limit, and few others.
"""

from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.views import address
from ....jit.simd import at, read, set_f32, store, write
from ...attention.layout import SEGMENT
from ..lookup import AT_ONCE, half_bytes_of, look_up
from ..masks import MASK_BYTES, bits_of
from ..prefetch import prefetch_lines

# Of f16 bits: 32 classes for each power of 2; factors of one class differ by 1.6 to 3.1%.
_CLASS_SHIFT = 5
_INFINITY = 0x7C00


@intrinsic
def sums_64(typingctx, kind, words, factors, lowest, tables, limits, masks, sums):
    """sums[query][64 tokens] int8 = sums over half bytes of the query's table; addresses all.

    Bit t of masks[query]: whether its sum is above limits[query][class of its factor - lowest].
    limits: int8 [query][64], of which the first 16 are used.
    """

    def codegen(ctx, b, sig, vals):
        words, factors, tables, limits, masks, sums = (at(b, vals[i]) for i in (1, 2, 4, 5, 6, 7))
        bits = read(b, factors, v.vty(v.I16, 64))
        first = v.splat(b, b.shl(b.trunc(vals[3], v.I16), ir.Constant(v.I16, _CLASS_SHIFT)), 64)
        bits = v.call(b, "llvm.usub.sat.v64i16", bits.type, bits, first)
        classes = b.trunc(b.lshr(bits, v.const(bits.type, _CLASS_SHIFT)), v.vty(v.I8, 64))
        places = [ir.Constant(v.I64, t * kind.bits // 8) for t in range(0, 64, AT_ONCE)]
        index = list(zip(*(half_bytes_of(b, b.gep(words, [at]), kind.bits) for at in places)))
        for h in range(kind.queries):
            total: list[ir.Value] = []
            for i, half_bytes in enumerate(index):
                table = read(b, tables, v.vty(v.I8, 16), h * 4 * kind.bits + 16 * i)
                d = [look_up(b, table, x) for x in half_bytes]
                total = [b.add(x, y) for x, y in zip(total, d)] if total else d
            limit, mask = read(b, limits, v.vty(v.I8, 16), 64 * h), ir.Constant(v.I64, 0)
            for i, x in enumerate(total):
                write(b, x, sums, SEGMENT * h + AT_ONCE * i)
                own = v.shuffle(b, classes, range(AT_ONCE * i, AT_ONCE * (i + 1)))
                above = b.icmp_signed(">", x, look_up(b, limit, own))
                above = b.bitcast(above, ir.IntType(AT_ONCE))
                above = above if AT_ONCE == 64 else b.zext(above, v.I64)
                mask = b.or_(mask, b.shl(above, ir.Constant(v.I64, AT_ONCE * i)))
            write(b, mask, masks, h * MASK_BYTES)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n, n, n, n), codegen


@intrinsic
def _lowest_class(typingctx, factors):
    """The lowest of the 16 classes that end with that of the greatest of SEGMENT f16 at an address.

    No factor is negative, so their order is that of their bits as integers.
    """

    def codegen(ctx, b, sig, vals):
        place, wide = at(b, vals[0]), v.vty(v.I16, 64)
        most = read(b, place, wide)
        for t in range(64, SEGMENT, 64):
            most = v.call(b, "llvm.smax.v64i16", wide, most, read(b, place, wide, 2 * t))
        last = b.lshr(
            v.call(b, "llvm.vector.reduce.smax.v64i16", v.I16, most),
            ir.Constant(v.I16, _CLASS_SHIFT),
        )
        lowest = v.call(b, "llvm.usub.sat.i16", v.I16, last, ir.Constant(v.I16, 15))
        return b.zext(lowest, v.I64)

    return types.int64(types.intp), codegen


@intrinsic
def _class_tops(typingctx, lowest):
    """The greatest f16 in each of 16 classes from `lowest` on, as a vector of float32."""

    def codegen(ctx, b, sig, vals):
        first = v.splat(b, b.trunc(vals[0], v.I16), 16)
        after = b.add(first, ir.Constant(first.type, [*range(1, 17)]))
        bits = b.sub(b.shl(after, v.const(first.type, _CLASS_SHIFT)), v.const(first.type, 1))
        bits = v.call(b, "llvm.smin.v16i16", bits.type, bits, v.const(bits.type, _INFINITY))
        return b.fpext(b.bitcast(bits, v.vty(v.F16, 16)), v.vty(v.F32, 16))

    return v.f32x16(types.int64), codegen


@jit
def _set_limits(lowest, limits, bytes_at):
    """The least sum that can reach each query's limit, less one, for each class of factors.

    bytes_at: address of int8 [query][64], of which 16 are written.
    """
    tops = _class_tops(lowest)
    for h in range(len(limits)):
        least = set_f32(-128.0)
        if limits[h] > 0.0:
            # One less than needed, so that no rounding loses a token; 127: no sum is above it.
            least = v.vmin(set_f32(limits[h]) / tops, set_f32(128.0)) - set_f32(1.0)
        store(bytes_at, 64 * h, v.to_i8(least))


class Sketches(NamedTuple):
    """Addresses of the sketches of one KV head in one segment."""

    bits: int
    factors: int


@jit
def sum_segment(kind, here, later, tables, limits, scan, buffer):
    """Sums and masks of the 1,024 tokens of a segment; prefetches the sketches of a `later` one.

    tables, limits: of the queries; scan: `Scan` of this thread, whose `buffer` is written.
    """
    n_bytes, table, below = bits_of(kind) // 8, address(tables), address(scan.limits)
    masks, sums = address(scan.masks[buffer]), address(scan.sums[buffer])
    lowest = _lowest_class(here.factors)
    _set_limits(lowest, limits, below)
    for t in range(0, SEGMENT, 64):
        prefetch_lines(later.bits, t * n_bytes, 64 * n_bytes)
        prefetch_lines(later.factors, 2 * t, 128)
        sums_64(
            kind, here.bits + t * n_bytes, here.factors + 2 * t, lowest, table, below,
            masks + t // 8, sums + t,
        )  # fmt: skip
