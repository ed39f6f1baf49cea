"""Distances as numbers whose bits lie apart: 512 signatures are compared with a query at a time.

Bit b of 512 signatures is one vector of 8 words, so their distances from a query are 6 vectors (7
of 64 bits): the sum of 32 vectors that say which signatures differ from it in bit b. Full adders
turn three vectors into two, and with AVX-512 take two instructions. The first ones, of three bits
each, are shared by all queries: they are done for each value that a query can have there.

    planes  uint64 [bit][16 words]    bit b of a segment's tokens
    half    of 512 tokens, uint64:
              [8]                     tokens outside the range that is chosen from
              [LOTS + 1][8]           tokens whose lot (`lots`) is below 0, 1, …
              [group][10][8]          of each three bits: how many differ, the low bit of it for an
                                      even and an odd number of bits in the query, the high bit for
                                      each of its eight values
    query   uint64 [QUERY_WORDS]:
              [22] of uint32 pairs    where the low and the high bits of a group are in a half
              [8]                     an even limit: word i has all bits set where bit i of
                                      2^n - limit is set, and word 0 where it is odd instead
              [2]                     where in a half the lots are below which ties are sure, or
                                      possible
              [8]                     how many were sure, of each word
              [LEVELS + 1][8]         how many are at least as far as the limit, the limit + 1, …

Arguments are addresses.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.simd import at, read, store, write
from ...attention.layout import SEGMENT
from ..lookup import bytes_of
from ..masks import WORDS, bit_count, bits_of, inside
from ..work import LEVELS, LOTS, half_words
from .lots import lot, lots_of

GFNI = "gfni" in v.FEATURES  # transposes 8 x 8 bits
_VECTOR = v.vty(v.I64, 8)
_BYTES = 64  # of a vector
_OF_GROUP = 10  # vectors
_LOTS_AT = _BYTES
_SUMS_AT = _BYTES * (LOTS + 2)
_LIMIT_AT, _CUTS_AT, _SURE_AT, _COUNTS_AT = 8 * 22, 8 * 30, 8 * 32, 8 * 40
# [n of `lots`, 2 or 4][what lots are combined with][lot]: which of 64 tokens have a lower one
_LOWER = np.array(
    [
        [[sum(1 << t for t in range(64) if lot.py_func(n, key, t) < low) for low in range(LOTS + 1)]
        for key in range(LOTS)]
        for n in (2, LOTS)
    ],
    np.uint64,
)  # fmt: skip


def _table(function):
    """The truth table of a function of a list of three bits."""
    return sum(function([i >> 2 & 1, i >> 1 & 1, i & 1]) << i for i in range(8))


_SUM, _CARRY = _table(lambda bits: sum(bits) & 1), _table(lambda bits: sum(bits) > 1)
_APART = _table(lambda bits: bits[0] != bits[1] or bits[2])
_BOTH = _table(lambda bits: (bits[0] and bits[1]) or bits[2])
_ANY = _table(any)


def _logic(b, table, x, y, z):
    """For each three bits of x, y and z what the truth table says."""
    name = "llvm.x86.avx512.pternlog.q.512"
    return v.call(b, name, _VECTOR, x, y, z, ir.Constant(v.I32, table))


def _groups(bits):
    return -(-bits // 3)


@intrinsic
def half_bytes(typingctx, kind):
    """Bytes of a half."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(
        v.I64, 8 * half_words(kind.bits)
    )


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
        single = b.bitcast(v.const(_VECTOR, 0x8040201008040201), v.vty(v.I8, 64))
        last_first = [i ^ 7 for i in range(64)]
        by_bit = [8 * (i % 8) + i // 8 for i in range(64)]
        rows: list[list[ir.Value]] = [[] for _ in range(kind.bits // 8)]
        for t in range(0, 512, 64):
            here = at(b, words, t * kind.bits // 8)
            for p, x in enumerate(bytes_of(b, here, kind.bits)):
                matrix, zero = v.shuffle(b, x, last_first), ir.Constant(v.I8, 0)
                own = v.call(b, "llvm.x86.vgf2p8affineqb.512", x.type, single, matrix, zero)
                rows[p].append(b.bitcast(v.shuffle(b, own, by_bit), _VECTOR))
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
        for group in range(_groups(kind.bits)):
            own = range(3 * group, min(3 * group + 3, kind.bits))
            x = [read(b, planes, _VECTOR, 8 * WORDS * bit) for bit in own]
            x += [v.const(_VECTOR, 0)] * (3 - len(x))
            to = _SUMS_AT + _BYTES * _OF_GROUP * group
            for odd in (0, 1):
                table = _table(lambda bits, odd=odd: (sum(bits) + odd) & 1)
                write(b, _logic(b, table, *x), half, to + _BYTES * odd)
            for q in range(8):
                mine = [q >> i & 1 for i in range(3)]
                table = _table(lambda bits, mine=mine: sum(m != n for m, n in zip(bits, mine)) >= 2)
                write(b, _logic(b, table, *x), half, to + _BYTES * (2 + q))
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
        _write_sums(kind, planes + i * _BYTES, halves + i * n_bytes)


@jit
def slice_lots(kind, key, halves):
    """Write the lots of a segment with this key into its halves."""
    n, n_bytes = lots_of(kind), half_bytes(kind)
    for w in range(WORDS):
        own = (np.int64(key) >> 2 * w) & (n - 1)
        place = halves + w // 8 * n_bytes + w % 8 * 8 + _LOTS_AT
        for below in range(n + 1):
            store(place, _BYTES * below, _LOWER[n >> 2, own, below])


@jit
def put_query(kind, query, signature):
    """Write where the sums of a query with this signature are."""
    for group in range((bits_of(kind) + 2) // 3):
        value = np.int64(signature >> np.uint64(3 * group)) & 7
        odd = np.int64(bit_count(np.uint64(value))) & 1
        place = _SUMS_AT + _BYTES * _OF_GROUP * group
        store(query, 8 * group, np.uint32(place + _BYTES * odd))
        store(query, 8 * group + 4, np.uint32(place + _BYTES * (2 + value)))


@jit
def put_limit(kind, query, limit):
    """Set the distance that a query's tokens are compared with, and count none yet."""
    offset = 2 * bits_of(kind) - (limit & ~1)
    store(query, _LIMIT_AT, -np.int64(limit & 1))
    for i in range(1, 8):
        store(query, _LIMIT_AT + 8 * i, -np.int64(offset >> i & 1))
    for i in range(8 * (LEVELS + 2)):
        store(query, _SURE_AT + 8 * i, np.int64(0))


@jit
def put_cuts(query, sure, possible):
    """Call ties with a lot below `sure` chosen, and those below `possible` candidates."""
    store(query, _CUTS_AT, np.int64(_LOTS_AT + _BYTES * sure))
    store(query, _CUTS_AT + 8, np.int64(_LOTS_AT + _BYTES * possible))


def _beyond(b, bits, half, query):
    """The bits of distance - limit of 512 tokens, the lowest first; and which are not negative.

    2^n - limit takes part in the sums, in columns that would else have two vectors to add, and a
    carry from the last bit, n - 1, says that nothing was borrowed. Tokens outside are far beyond.
    """
    n, outside = bits.bit_length(), read(b, half, _VECTOR)
    offset = [v.splat(b, read(b, query, v.I64, _LIMIT_AT + 8 * i), 8) for i in range(1, n + 1)]
    columns = [[], *([x] for x in offset[: n - 2]), []]

    def add(i, x):
        columns[i].append(x)
        if len(columns[i]) == 3:
            three, columns[i] = columns[i], []
            add(i, _logic(b, _SUM, *three))
            add(i + 1, _logic(b, _CARRY, *three))

    for group in range(_groups(bits)):
        for i in range(2):
            where = b.zext(read(b, query, v.I32, 8 * group + 4 * i), v.I64)
            add(i, read(b, at(b, half, where), _VECTOR))
    for i in range(n - 1):
        if len(columns[i]) == 2:
            x, y = columns[i]
            columns[i] = [b.xor(x, y)]
            add(i + 1, b.and_(x, y))
    last, top = columns[n - 1][0], offset[n - 2 :]
    for other in columns[n - 1][1:]:
        last = b.or_(last, other)  # at most one is set
    less = [*(column[0] for column in columns[: n - 1]), _logic(b, _APART, last, top[0], outside)]
    return less, b.or_(_logic(b, _BOTH, last, top[0], top[1]), outside)


def _any(b, vectors):
    found, *rest = vectors
    while rest:
        second, *rest = rest if len(rest) > 1 else [rest[0], rest[0]]
        found = _logic(b, _ANY, found, second, rest.pop(0))
    return found


def _ones(b, x):
    return v.call(b, "llvm.ctpop.v8i64", _VECTOR, x)


@intrinsic
def count_segment(typingctx, kind, halves, query):
    """Count what is as far from a query as its limit, the limit + 1, …, or farther."""

    def codegen(ctx, b, sig, vals):
        halves, query = (at(b, x) for x in vals[1:])
        counts = [read(b, query, _VECTOR, _COUNTS_AT + _BYTES * i) for i in range(LEVELS + 1)]
        for i in range(2):
            half = at(b, halves, 8 * half_words(kind.bits) * i)
            less, far = _beyond(b, kind.bits, half, query)
            most = _any(b, less[2:])  # 4 or more from the limit
            own = [_any(b, [most, *less[:2]]), b.or_(most, less[1])]
            own += [b.or_(most, b.and_(less[0], less[1])), most]
            masks = [far, *(b.and_(far, x) for x in own)]
            counts = [b.add(n, _ones(b, x)) for n, x in zip(counts, masks)]
        for i, n in enumerate(counts):
            write(b, n, query, _COUNTS_AT + _BYTES * i)
        return ctx.get_dummy_value()

    return types.void(kind, types.intp, types.intp), codegen


@intrinsic
def mark_segment(typingctx, kind, halves, query, marks, words, places, first, n):
    """Set the bits of a query's sure tokens in a segment's marks; append words of its candidates.

    words, places: behind the n words of candidates so far, those of this segment that are not 0 and
    their numbers, from `first` on. Returns how many there are then.
    """

    def codegen(ctx, b, sig, vals):
        halves, query, marks, words, places = (at(b, x) for x in vals[1:6])
        first, n, total = vals[6], vals[7], read(b, query, _VECTOR, _SURE_AT)
        odd = v.splat(b, read(b, query, v.I64, _LIMIT_AT), 8)
        cuts = [read(b, query, v.I64, _CUTS_AT + 8 * i) for i in range(2)]
        for i in range(2):
            half = at(b, halves, 8 * half_words(kind.bits) * i)
            less, far = _beyond(b, kind.bits, half, query)
            pair = b.and_(far, b.not_(_any(b, less[1:])))  # at an even distance, or the odd one
            ties = b.and_(pair, b.not_(b.xor(less[0], odd)))
            near = b.or_(b.not_(far), b.and_(b.and_(pair, odd), b.not_(less[0])))
            sure, possible = (read(b, at(b, half, cut), _VECTOR) for cut in cuts)
            chosen = b.or_(near, b.and_(ties, sure))
            write(b, b.or_(chosen, read(b, marks, _VECTOR, _BYTES * i)), marks, _BYTES * i)
            total = b.add(_ones(b, chosen), total)
            drawn = b.and_(b.and_(ties, possible), b.not_(sure))
            some = b.icmp_unsigned("!=", drawn, v.const(_VECTOR, 0))
            number = ir.Constant(_VECTOR, [*range(8 * i, 8 * i + 8)])
            own = b.add(v.splat(b, first, 8), number)
            to = b.shl(n, ir.Constant(v.I64, 3))
            for x, place in ((drawn, words), (own, places)):
                name = "llvm.x86.avx512.mask.compress.v8i64"
                own = v.call(b, name, _VECTOR, x, v.const(_VECTOR, 0), some)
                write(b, own, at(b, place, to))
            found = v.call(b, "llvm.ctpop.i8", v.I8, b.bitcast(some, v.I8))
            n = b.add(n, b.zext(found, v.I64))
        write(b, total, query, _SURE_AT)
        return n

    n = types.intp
    return types.int64(kind, n, n, n, n, n, n, n), codegen


@intrinsic
def _sum_words(typingctx, place):
    """The sum of 8 words."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), _VECTOR)
        return v.call(b, "llvm.vector.reduce.add.v8i64", v.I64, x)

    return types.int64(types.intp), codegen


@jit
def counted(query, level):
    """How many tokens were as far from a query as its limit + `level`, or farther."""
    return _sum_words(query + _COUNTS_AT + _BYTES * level)


@jit
def counted_sure(query):
    """How many tokens were sure, so that they were marked."""
    return _sum_words(query + _SURE_AT)
