"""Which of 128 signatures are near each query, on CPUs that cannot count bits.

AVX2, and AVX-512 on older CPUs, have no such instruction: half bytes of the signatures index tables
of distances. As these look-ups limit the speed, two queries share each of them: an entry holds the
distances from both, in four bits each,

    entry of query pair (a, b), half byte i, value x  =  d(a_i, x) | d(b_i, x) << 4

Sums of four entries have to fit in these four bits, so every fourth table counts a distance of 4 as
3. A sum is therefore up to 1 per 16 bits below the true distance, and a mask has a few tokens too
many; `hamming` counts their bits again.

    planes   uint8 [half byte][128 tokens]      tables   uint8 [pair][16 half bytes][16]
    limits   int8 [query][pattern][64]: distances, see `lots`
    masks    uint64 [query][16 words], two of which are written
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.simd import at, read, write
from ..lookup import AT_ONCE, WIDEST, half_bytes_of, look_up
from ..work import NEAR_TOKENS as TOKENS
from .lots import limits_of

TABLE_BYTES = 256  # of a pair: 16 half bytes of up to 64 bits, 16 entries each


@intrinsic
def spread_128(typingctx, kind, words, planes):
    """Write half byte i of 128 signatures to planes[i]; addresses."""

    def codegen(ctx, b, sig, vals):
        words, planes = (at(b, x) for x in vals[1:])
        for part in range(0, TOKENS, AT_ONCE):
            place = b.gep(words, [ir.Constant(v.I64, part * kind.bits // 8)])
            for i, x in enumerate(half_bytes_of(b, place, kind.bits)):
                write(b, x, planes, i * TOKENS + part)
        return ctx.get_dummy_value()

    return types.void(kind, types.intp, types.intp), codegen


@intrinsic
def near_pair(typingctx, kind, planes, tables, limits, key, masks):
    """Masks of 128 tokens for two queries; all are addresses, but for `key`.

    key: of the segment's lots, shifted to begin with theirs.
    """

    def codegen(ctx, b, sig, vals):
        planes, tables, limits = (at(b, x) for x in vals[1:4])
        key, masks = vals[4], at(b, vals[5])
        sums = _sums(b, kind.bits // 4, planes, tables)
        for query in range(2):
            for part, groups in enumerate(sums):
                word, first = divmod(part * AT_ONCE, 64)
                shifted = b.lshr(key, ir.Constant(key.type, 2 * word))
                limit = read(b, limits_of(b, kind.bits, limits, shifted, query), WIDEST, first)
                near = b.icmp_signed(">", limit, _distance(b, query, groups))
                bits = b.bitcast(near, ir.IntType(AT_ONCE))
                write(b, bits, masks, 128 * query + AT_ONCE // 8 * part)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, types.uint64, n), codegen


def _sums(b, n_tables, planes, tables):
    """The sums of every four look-ups, for each AT_ONCE tokens."""
    entries = [read(b, tables, v.vty(v.I8, 16), 16 * i) for i in range(n_tables)]
    sums: list[list[ir.Value]] = [[] for _ in range(TOKENS // AT_ONCE)]
    for i, table in enumerate(entries):
        for part, groups in enumerate(sums):
            x = read(b, planes, WIDEST, i * TOKENS + part * AT_ONCE)
            d = look_up(b, table, x)
            if i % 4:
                groups[-1] = b.add(groups[-1], d)
            else:
                groups.append(d)
    return sums


def _distance(b, query, groups):
    """The distance from one query of a pair: the sum of its four bits of each group."""
    parts = [b.and_(_shifted(b, x, 4 * query), v.const(WIDEST, 15)) for x in groups]
    while len(parts) > 1:
        parts = [b.add(x, y) for x, y in zip(parts[::2], parts[1::2])]
    return parts[0]


def _shifted(b, x, n):
    """Bytes shifted right by n as words of 16 bits: what a byte gets of its neighbour is above."""
    words = b.bitcast(x, v.vty(v.I16, AT_ONCE // 2))
    return b.bitcast(b.lshr(words, v.const(words.type, n)), WIDEST)
