"""Sums of a segment's sketches for many queries: what all of them share is made once.

    planes   uint8, of each 128 tokens [half byte][128], what `signatures.pairs` writes
    classes  uint8 [token] of the factors, and the factors as float32

Two queries share each load of a plane, and four or eight vectors of tokens each load of a table
(which takes an AMD Zen 4 as long as a lookup). Sums and masks are those of `sums`.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.views import address
from ....jit.simd import at, at_item, load_f16, read, set_i8, store, write
from ...attention.layout import SEGMENT
from ..lookup import AT_ONCE, WIDEST, add_saturated, look_up
from ..masks import MASK_BYTES, bits_of, queries_of
from ..signatures.pairs import spread_128
from ..work import NEAR_TOKENS as TOKENS
from .sums import class_bytes, lowest_class, set_limits

_SUMMED = TOKENS if AT_ONCE == 32 else 4 * TOKENS  # at a time: what registers hold for two queries
_TABLES = 64  # of a query, at most, in one block of code: LLVM takes minutes for twice as many


def _n_parts(bits: int) -> int:
    """The equal parts in which a query's tables are summed, none of more than _TABLES."""
    n = bits // 4
    return next(parts for parts in range(-(-n // _TABLES), n) if n % parts == 0)


@intrinsic
def _parts_of(typingctx, kind):
    """`_n_parts` of a Kind."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(v.I64, _n_parts(kind.bits))


@intrinsic
def _classes_64(typingctx, lowest, factors, classes):
    """Write the classes of 64 factors; factors, classes: addresses."""

    def codegen(ctx, b, sig, vals):
        write(b, class_bytes(b, at(b, vals[1]), vals[0]), at(b, vals[2]))
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(n, n, n), codegen


@intrinsic
def _sum_part(typingctx, kind, part, planes, tables, sums):
    """Add to the sums those over one of the parts of the tables; addresses, of the first table."""

    def codegen(ctx, b, sig, vals):
        _, part, planes, tables, sums = vals
        n, parts = kind.bits // 4, _n_parts(kind.bits)
        size = n // parts
        planes, tables = (
            at_item(b, planes, part, size * TOKENS),
            at_item(b, tables, part, size * 16),
        )
        memory = planes, tables, at(b, sums)
        for first in range(0, kind.queries, 2) if parts > 1 else ():
            pair = range(first, min(first + 2, kind.queries))
            for h, totals in zip(pair, _totals(b, n, range(size), memory, pair)):
                for i, total in enumerate(totals):
                    write(b, total, memory[2], SEGMENT * h + AT_ONCE * i)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n), codegen


@intrinsic
def _sum_some(typingctx, kind, planes, classes, tables, limits, masks, sums):
    """`sums.sums_64` of _SUMMED tokens, from their planes and classes; addresses all.

    limits: int8 [query][64] as there; masks uint64 [query][16], of which theirs are written. sums:
    hold those over all parts but the last.
    """

    def codegen(ctx, b, sig, vals):
        planes, classes, tables, limits, masks, sums = (at(b, x) for x in vals[1:])
        n, parts = kind.bits // 4, _n_parts(kind.bits)
        memory = planes, tables, sums if parts > 1 else None
        for first in range(0, kind.queries, 2):
            pair = range(first, min(first + 2, kind.queries))
            of_pair = _totals(b, n, range(n - n // parts, n), memory, pair)
            for h, totals in zip(pair, of_pair):
                limit = read(b, limits, v.vty(v.I8, 16), 64 * h)
                for part, total in enumerate(totals):
                    # No sum is -128, so that all are above a limit of -128.
                    least = v.const(WIDEST, -127)
                    raised = v.call(b, f"llvm.smax.v{AT_ONCE}i8", WIDEST, total, least)
                    write(b, raised, sums, SEGMENT * h + AT_ONCE * part)
                    needed = look_up(b, limit, read(b, classes, WIDEST, AT_ONCE * part))
                    above = b.icmp_signed(">", raised, needed)
                    above = b.bitcast(above, ir.IntType(AT_ONCE))
                    write(b, above, masks, MASK_BYTES * h + AT_ONCE // 8 * part)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n, n, n), codegen


def _totals(b, n_tables, wanted, memory, queries):
    """The sums over the `wanted` tables of each of the queries for each AT_ONCE tokens.

    memory: planes, tables, and the sums so far or None.
    """
    planes, tables, sums = memory
    totals: list[list[ir.Value]] = [[] for _ in queries]
    if sums is not None:
        steps = range(0, _SUMMED, AT_ONCE)
        totals = [[read(b, sums, WIDEST, SEGMENT * h + t) for t in steps] for h in queries]
    places = [
        t // TOKENS * n_tables * TOKENS + t % TOKENS for t in range(0, _SUMMED, AT_ONCE)
    ]  # of the tokens' first half bytes
    for i in wanted:
        entries = [read(b, tables, v.vty(v.I8, 16), 16 * (h * n_tables + i)) for h in queries]
        for part, place in enumerate(places):
            x = read(b, planes, WIDEST, place + i * TOKENS)
            for total, table in zip(totals, entries):
                d = look_up(b, table, x)
                if len(total) == part:
                    total.append(d)
                else:
                    total[part] = add_saturated(b, total[part], d)
    return totals


@jit
def spread_segment(kind, sketches, to, n):
    """Write what scans read of the segment of these sketches to part n of `to` (`Spread`).

    Returns its lowest class, and the bits of its least factor.
    """
    n_bytes, factors, planes = bits_of(kind) // 8, sketches.factors, address(to.planes[n])
    classes, floats = address(to.classes[n]), address(to.factors[n])
    lowest, least = lowest_class(factors)
    for t in range(0, SEGMENT, TOKENS):
        spread_128(kind, sketches.bits + t * n_bytes, planes + 2 * t * n_bytes)
    for t in range(0, SEGMENT, 64):
        _classes_64(lowest, factors + 2 * t, classes + t)
    for t in range(0, SEGMENT, 16):
        store(floats, 4 * t, load_f16(factors, 2 * t))
    return lowest, least


@jit
def sum_spread(kind, lowest, least, spread, n, tables, limits, scan, buffer):
    """As `sums.sum_segment`, of part n of what `spread_segment` has written."""
    planes, classes = address(spread.planes[n]), address(spread.classes[n])
    table, below, n_bytes = address(tables), address(scan.limits), bits_of(kind) // 8
    masks, sums = address(scan.masks[buffer]), address(scan.sums[buffer])
    set_limits(lowest, least, limits, below)
    if _parts_of(kind) > 1:
        for i in range(0, queries_of(kind) * SEGMENT, 64):
            store(sums, i, set_i8(0))
    for part in range(_parts_of(kind) - 1):
        for t in range(0, SEGMENT, _SUMMED):
            _sum_part(kind, part, planes + 2 * t * n_bytes, table, sums + t)
    for t in range(0, SEGMENT, _SUMMED):
        _sum_some(
            kind, planes + 2 * t * n_bytes, classes + t, table, below, masks + t // 8, sums + t
        )
