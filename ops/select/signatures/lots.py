"""Lots, which break ties between equal distances; by age, one end of the text would lose them all.

    cost(t) = n * distance(t) + lot(t),  n = 128 / bits
    lot(t)  = floor((37 t mod 64) n / 64)  xor  floor(h / 4^(t // 64)) mod n

for token t of a segment, with h the `position_hash` of the segment. Of equal costs, `position_hash`
of the token decides. Each of the n lots has an n-th of any 64 neighbours, spread evenly, so a limit
of costs can admit any number of n-ths of the tokens at one distance. Costs fit in a byte, and one
operation makes a vector of lots.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.simd import at, write
from ...attention.layout import SEGMENT
from ..best import position_hash
from ..masks import bits_of

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


def lot_bytes(b, bits, key, first, count):
    """The lots of `count` tokens of 64 from `first` on, less 128, so that costs are signed bytes.

    key: of the segment's lots, shifted to begin with those of these 64 tokens.
    """
    n = 128 // bits
    own = b.trunc(b.and_(key, ir.Constant(key.type, n - 1)), v.I8)
    spread = [(_SPREAD * t % 64 * n // 64) - 128 for t in range(first, first + count)]
    return b.xor(ir.Constant(v.vty(v.I8, count), spread), v.splat(b, own, count))


@intrinsic
def write_lots(typingctx, kind, key, lots):
    """Write the lots of a segment's 1,024 tokens as bytes; key: `key_of` the segment."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[2])
        for t in range(0, SEGMENT, 64):
            own = b.lshr(vals[1], ir.Constant(v.I64, t // 64 * 2))
            signed = lot_bytes(b, kind.bits, own, 0, 64)
            write(b, b.xor(signed, v.const(signed.type, -128)), place, t)
        return ctx.get_dummy_value()

    return types.void(kind, types.uint64, types.intp), codegen
