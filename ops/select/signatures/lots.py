"""Equal distances are decided by lot: not by age, which would lose one end of a text.

    lot(t) = floor((37 t mod 64) n / 64)  xor  floor(h / 4^(t // 64)) mod n    n = 128 / bits

for token t of a segment, h: `position_hash` of the segment. A cost is n times the distance, and the
lot; equal ones are left to `position_hash` of the token. Of 64 neighbours each lot has its share,
spread evenly, and a limit among costs cuts an n-th of those at a distance, while a vector of lots
takes one operation to make. Costs fit a byte.
"""

from llvmlite import ir

from ....jit import simd as v
from ....jit.cached import jit
from ..best import position_hash
from ..masks import bits_of

_SPREAD = 37  # about 64 / golden ratio: neighbours are far apart
MOST = 132  # no cost reaches it


@jit
def lots_of(kind):
    """How many there are: n, for signatures of a kind."""
    return 128 // bits_of(kind)


@jit
def key_of(segment, seed):
    """h: what the lots of a segment's tokens are drawn from."""
    return position_hash(segment, seed)


@jit
def lot(n, key, t):
    """The lot of token t of the segment with this key."""
    return ((_SPREAD * t & 63) * n >> 6) ^ (key >> (t >> 6 << 1) & (n - 1))


def lot_bytes(b, bits, key, first, count):
    """The lots of `count` tokens of 64 from `first` on, less 128; key: shifted to begin with them.

    With 128 less, n times a distance and a lot are in order as signed bytes.
    """
    n = 128 // bits
    own = b.trunc(b.and_(key, ir.Constant(key.type, n - 1)), v.I8)
    spread = [(_SPREAD * t % 64 * n // 64) - 128 for t in range(first, first + count)]
    return b.xor(ir.Constant(v.vty(v.I8, count), spread), v.splat(b, own, count))
