"""Lots, which break ties between equal distances; by age, one end of the text would lose them all.

    cost(t) = n * distance(t) + lot(t),  n = 128 / bits
    lot(t)  = floor((37 t mod 64) n / 64)  xor  floor(h / 4^(t // 64)) mod n

for token t of a segment, with h the `position_hash` of the segment. Of equal costs, `position_hash`
of the token decides. Each of the n lots has an n-th of any 64 neighbours, spread evenly, so a limit
of costs can admit any number of n-ths of the tokens at one distance:

    cost(t) < limit  if and only if  distance(t) < ceil((limit - lot(t)) / n)

There are n patterns of lots over 64 neighbours, one for each value of floor(h / 4^(t // 64)) mod n.
So scans compare distances with one of n vectors (`write_limits`), and compute no costs.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.simd import at, at_item, write
from ...attention.layout import SEGMENT
from ..best import position_hash
from ..masks import bits_of
from ..work import LIMIT_BYTES

_SPREAD = 37  # about 64 / golden ratio: neighbours are far apart
COST_LIMIT = 132  # more than any cost


@jit
def lots_of(kind):
    """n, for signatures of a kind."""
    return 128 // bits_of(kind)


@jit
def key_of(segment, seed):
    """h, from which the lots of a segment's tokens are computed."""
    return position_hash(segment, seed)


@jit
def lot(n, key, t):
    """The lot of token t of the segment with this key."""
    return ((_SPREAD * t & 63) * n >> 6) ^ (key >> (t >> 6 << 1) & (n - 1))


def _spread(n):
    """The lots of 64 neighbours, of the pattern 0; of pattern x, each xor x."""
    return [_SPREAD * t % 64 * n // 64 for t in range(64)]


@intrinsic
def write_limits(typingctx, kind, limit, limits):
    """Write the distances below which tokens cost less than `limit`, int8[n patterns][64 tokens].

    limits: an address.
    """

    def codegen(ctx, b, sig, vals):
        n, wide = 128 // kind.bits, v.vty(v.I16, 64)
        limit, place = v.splat(b, b.trunc(vals[1], v.I16), 64), at(b, vals[2])
        for x in range(n):
            lots = ir.Constant(wide, [(lot ^ x) - (n - 1) for lot in _spread(n)])
            distance = b.ashr(b.sub(limit, lots), v.const(wide, n.bit_length() - 1))
            write(b, b.trunc(distance, v.vty(v.I8, 64)), place, 64 * x)
        return ctx.get_dummy_value()

    return types.void(kind, types.int64, types.intp), codegen


def limits_of(b, bits, limits, key, query):
    """Where a query's limits for 64 neighbours are; key: of their segment, shifted to begin with
    theirs; limits: i8*, of all queries."""
    pattern = b.and_(key, ir.Constant(key.type, 128 // bits - 1))
    return at(b, at_item(b, limits, pattern, 64), LIMIT_BYTES * query)


@intrinsic
def write_lots(typingctx, kind, key, lots):
    """Write the lots of a segment's 1,024 tokens as bytes; key: `key_of` the segment."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[2])
        n, bytes_64 = 128 // kind.bits, v.vty(v.I8, 64)
        for t in range(0, SEGMENT, 64):
            shifted = b.lshr(vals[1], ir.Constant(v.I64, t // 64 * 2))
            pattern = b.trunc(b.and_(shifted, ir.Constant(v.I64, n - 1)), v.I8)
            lots = b.xor(ir.Constant(bytes_64, _spread(n)), v.splat(b, pattern, 64))
            write(b, lots, place, t)
        return ctx.get_dummy_value()

    return types.void(kind, types.uint64, types.intp), codegen
