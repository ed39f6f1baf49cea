"""512 signatures compared with a query at a time, by adders of bits.

Their distances from it are 6 vectors (7 of 64 bits), one for each bit of the distance: the sum of
32 vectors that say which signatures differ from the query in bit b. A full adder turns three
vectors of equal weight into two, the sum's and the carry's, and takes two instructions. The first
adders, of three bits each, are shared by all queries and done in `halves`.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .....jit import simd as v
from .....jit.simd import at, emit_barrier, read, write
from ...work import COUNTERS, half_words
from .layout import (
    COUNTS_AT,
    CUTS_AT,
    LIMIT_AT,
    VECTOR,
    VECTOR_BYTES,
    groups_of,
    logic,
    truth_table,
)

_SUM, _CARRY = truth_table(lambda bits: sum(bits) & 1), truth_table(lambda bits: sum(bits) > 1)
_APART = truth_table(lambda bits: bits[0] != bits[1] or bits[2])
_BOTH = truth_table(lambda bits: (bits[0] and bits[1]) or bits[2])
_ANY = truth_table(any)


def _beyond(b, bits, half, query):
    """The bits of distance - limit of 512 tokens, the lowest first; and which are not negative.

    2^n - limit takes part in the sums, in columns that would else have two vectors to add, and a
    carry from the last bit, n - 1, says that nothing was borrowed. Tokens outside are far beyond.
    """
    n, outside = bits.bit_length(), read(b, half, VECTOR)
    offset = [v.splat(b, read(b, query, v.I64, LIMIT_AT + 8 * i), 8) for i in range(1, n + 1)]
    columns = [[], *([x] for x in offset[: n - 2]), []]

    def add(i, x):
        columns[i].append(x)
        if len(columns[i]) == 3:
            three, columns[i] = columns[i], []
            add(i, logic(b, _SUM, *three))
            add(i + 1, logic(b, _CARRY, *three))

    for group in range(groups_of(bits)):
        for i in range(2):
            where = b.zext(read(b, query, v.I32, 8 * group + 4 * i), v.I64)
            add(i, read(b, at(b, half, where), VECTOR))
    for i in range(n - 1):
        if len(columns[i]) == 2:
            x, y = columns[i]
            columns[i] = [b.xor(x, y)]
            add(i + 1, b.and_(x, y))
    last, top = columns[n - 1][0], offset[n - 2 :]
    for other in columns[n - 1][1:]:
        last = b.or_(last, other)  # at most one is set
    less = [*(column[0] for column in columns[: n - 1]), logic(b, _APART, last, top[0], outside)]
    return less, b.or_(logic(b, _BOTH, last, top[0], top[1]), outside)


def _any(b, vectors):
    found, *rest = vectors
    while rest:
        second, *rest = rest if len(rest) > 1 else [rest[0], rest[0]]
        found = logic(b, _ANY, found, second, rest.pop(0))
    return found


def _ones(b, x):
    return v.call(b, "llvm.ctpop.v8i64", VECTOR, x)


@intrinsic
def count_segment(typingctx, kind, halves, query):
    """Count what is as far from a query as its limit, the limit + 1, …, or farther."""

    def codegen(ctx, b, sig, vals):
        halves, query = (at(b, x) for x in vals[1:])
        counts = [read(b, query, VECTOR, COUNTS_AT + VECTOR_BYTES * i) for i in range(COUNTERS)]
        for i in range(2):
            emit_barrier(b)  # LLVM would mix the halves, and spill vectors across cache lines
            half = at(b, halves, 8 * half_words(kind.bits) * i)
            less, far = _beyond(b, kind.bits, half, query)
            most = _any(b, less[2:])  # 4 or more from the limit
            own = [_any(b, [most, *less[:2]]), b.or_(most, less[1])]
            own += [b.or_(most, b.and_(less[0], less[1])), most]
            masks = [far, *(b.and_(far, x) for x in own)]
            for level, x in enumerate(masks):
                own = b.shl(_ones(b, x), v.const(VECTOR, 32 * (level % 2)))
                counts[level // 2] = b.add(counts[level // 2], own)
        for i, n in enumerate(counts):
            write(b, n, query, COUNTS_AT + VECTOR_BYTES * i)
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
        first, n, total = vals[6], vals[7], read(b, query, VECTOR, COUNTS_AT)
        odd = v.splat(b, read(b, query, v.I64, LIMIT_AT), 8)
        cuts = [read(b, query, v.I64, CUTS_AT + 8 * i) for i in range(2)]
        for i in range(2):
            half = at(b, halves, 8 * half_words(kind.bits) * i)
            less, far = _beyond(b, kind.bits, half, query)
            pair = b.and_(far, b.not_(_any(b, less[1:])))  # at an even distance, or the odd one
            ties = b.and_(pair, b.not_(b.xor(less[0], odd)))
            near = b.or_(b.not_(far), b.and_(b.and_(pair, odd), b.not_(less[0])))
            sure, possible = (read(b, at(b, half, cut), VECTOR) for cut in cuts)
            chosen = b.or_(near, b.and_(ties, sure))
            write(
                b, b.or_(chosen, read(b, marks, VECTOR, VECTOR_BYTES * i)), marks, VECTOR_BYTES * i
            )
            total = b.add(_ones(b, chosen), total)
            drawn = b.and_(b.and_(ties, possible), b.not_(sure))
            some = b.icmp_unsigned("!=", drawn, v.const(VECTOR, 0))
            number = ir.Constant(VECTOR, [*range(8 * i, 8 * i + 8)])
            own = b.add(v.splat(b, first, 8), number)
            to = b.shl(n, ir.Constant(v.I64, 3))
            for x, place in ((drawn, words), (own, places)):
                name = "llvm.x86.avx512.mask.compress.v8i64"
                own = v.call(b, name, VECTOR, x, v.const(VECTOR, 0), some)
                write(b, own, at(b, place, to))
            found = v.call(b, "llvm.ctpop.i8", v.I8, b.bitcast(some, v.I8))
            n = b.add(n, b.zext(found, v.I64))
        write(b, total, query, COUNTS_AT)
        return n

    n = types.intp
    return types.int64(kind, n, n, n, n, n, n, n), codegen
