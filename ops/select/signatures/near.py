"""Which signatures of a segment are near each query: the Hamming scan's inner operation.

Signatures are read once for up to 4 queries. How set bits of signature xor query are counted is up
to the CPU:

    AVX-512 that counts bits of bytes   byte p of 64 signatures in one vector, as many sums
    other x86                           look-ups (`pairs`)
    others                              64 whole signatures (cnt, or what LLVM finds)

    queries  uint64 [query]                     words    u32 or u64 [token]
    limits   int8 [query][pattern][64]          masks    uint64 [query][16 words]

A mask has all tokens whose distance is below the query's limit for their lot (`lots`), so all that
cost less than a limit; with `pairs`, a few others.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.views import address
from ....jit.simd import at, read, store, write
from ...attention.layout import SEGMENT
from ..lookup import bytes_of
from ..masks import MASK_BYTES, bit_count, bits_of
from ..prefetch import prefetch_lines
from ..work import LIMIT_BYTES
from ..work import NEAR_TOKENS as TOKENS
from .lots import limits_of, write_limits
from .pairs import TABLE_BYTES, near_pair, spread_128

BYTES = v.VARIANT == "avx512" and "avx512bitalg" in v.FEATURES
# With AVX2, and on Intel's servers until 2021: AVX-512 without an instruction that counts bits.
LOOKUP = v.VARIANT in ("avx2", "avx512") and not BYTES
QUERY_BYTES = TABLE_BYTES // 2
_COPIES = np.uint64(0x01010101)


@intrinsic
def _count_64(typingctx, kind, words, queries, limits, key, masks):
    """Bit t of masks[query]: whether token t of 64 is nearer than the query's limit for its lot.

    key: of the segment's lots, shifted to begin with theirs; all others are addresses.
    """

    def codegen(ctx, b, sig, vals):
        words, queries, limits, masks = (at(b, vals[i]) for i in (1, 2, 3, 5))
        word, name = ir.IntType(kind.bits), f"llvm.ctpop.v64i{kind.bits}"
        sig = read(b, words, v.vty(word, 64))
        for h in range(kind.queries):
            q = v.splat(b, read(b, queries, word, 8 * h), 64)
            d = b.trunc(v.call(b, name, sig.type, b.xor(sig, q)), v.vty(v.I8, 64))
            limit = read(b, limits_of(b, kind.bits, limits, vals[4], h), d.type)
            near = b.icmp_signed(">", limit, d)
            write(b, b.bitcast(near, v.I64), masks, h * MASK_BYTES)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, types.uint64, n), codegen


def _near_by(read_planes):
    """As `_count_64`, with the queries' bytes as `make_tables` writes them.

    read_planes(b, place, bits) gives byte p of the 64 signatures, for each p.
    """

    @intrinsic
    def near_64(typingctx, kind, place, tables, limits, key, masks):
        def codegen(ctx, b, sig, vals):
            place, tables, limits, masks = (at(b, vals[i]) for i in (1, 2, 3, 5))
            bytes_64, wide = v.vty(v.I8, 64), v.vty(v.I32, 16)
            planes = [b.bitcast(plane, wide) for plane in read_planes(b, place, kind.bits)]
            for h in range(kind.queries):
                counts = []
                for i, plane in enumerate(planes):
                    byte = v.splat(b, read(b, tables, v.I32, QUERY_BYTES * h + 4 * i), 16)
                    differs = b.bitcast(b.xor(plane, byte), bytes_64)
                    counts.append(v.call(b, "llvm.ctpop.v64i8", bytes_64, differs))
                while len(counts) > 1:
                    counts = [b.add(x, y) for x, y in zip(counts[::2], counts[1::2])]
                limit = read(b, limits_of(b, kind.bits, limits, vals[4], h), bytes_64)
                near = b.icmp_signed(">", limit, counts[0])
                write(b, b.bitcast(near, v.I64), masks, h * MASK_BYTES)
            return ctx.get_dummy_value()

        n = types.intp
        return types.void(kind, n, n, n, types.uint64, n), codegen

    return near_64


_near_64 = _near_by(bytes_of)
_near_planes_64 = _near_by(
    lambda b, place, bits: [read(b, place, v.vty(v.I8, 64), 64 * i) for i in range(bits // 8)]
)
"""Of what `_spread_64` has written."""


@intrinsic
def _spread_64(typingctx, kind, words, planes):
    """Write byte i of 64 signatures to planes[i]; addresses."""

    def codegen(ctx, b, sig, vals):
        words, planes = (at(b, x) for x in vals[1:])
        for i, x in enumerate(bytes_of(b, words, kind.bits)):
            write(b, x, planes, 64 * i)
        return ctx.get_dummy_value()

    return types.void(kind, types.intp, types.intp), codegen


@intrinsic
def _pairs_of(typingctx, kind):
    """Pairs of queries; of an odd number, the last pair has one query and unused memory."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(v.I64, -(-kind.queries // 2))


@jit
def _near_pairs(kind, planes, key, tables, limits, masks):
    """Masks of the 128 tokens of these planes, two queries at a time."""
    for p in range(_pairs_of(kind)):
        near_pair(
            kind, planes, tables + p * TABLE_BYTES, limits + 2 * p * LIMIT_BYTES, key,
            masks + 2 * p * MASK_BYTES,
        )  # fmt: skip


@jit
def near_segment(kind, words, later, key, queries, tables, limits, planes, masks):
    """Masks of the 1,024 tokens at address `words`; prefetches those at `later`.

    key: of the segment's lots; all others are addresses.
    """
    half = 64 * (bits_of(kind) // 8)  # bytes of 64 signatures
    for t in range(0, SEGMENT, TOKENS):
        place, to = words + t // 64 * half, masks + t // 8
        prefetch_lines(later, t // 64 * half, 2 * half)
        lots, later_lots = key >> np.uint64(t >> 6 << 1), key >> np.uint64((t >> 6 << 1) + 2)
        if LOOKUP:
            spread_128(kind, place, planes)
            _near_pairs(kind, planes, lots, tables, limits, to)
        elif BYTES:
            _near_64(kind, place, tables, limits, lots, to)
            _near_64(kind, place + half, tables, limits, later_lots, to + 8)
        else:
            _count_64(kind, place, queries, limits, lots, to)
            _count_64(kind, place + half, queries, limits, later_lots, to + 8)


@jit
def spread_segment(kind, words, planes):
    """What `near_spread` reads of the 1,024 tokens at `words`, for any number of queries."""
    if LOOKUP:
        for t in range(0, SEGMENT, TOKENS):
            spread_128(kind, words + t * (bits_of(kind) // 8), planes + t * (bits_of(kind) // 4))
    elif BYTES:
        for t in range(0, SEGMENT * (bits_of(kind) // 8), 8 * bits_of(kind)):
            _spread_64(kind, words + t, planes + t)


@jit
def near_spread(kind, words, planes, key, queries, tables, limits, masks):
    """As `near_segment`, of tokens that `spread_segment` has written to `planes`."""
    half = 64 * (bits_of(kind) // 8)
    for t in range(0, SEGMENT, TOKENS):
        place, to = t // 64 * half, masks + t // 8
        lots, later_lots = key >> np.uint64(t >> 6 << 1), key >> np.uint64((t >> 6 << 1) + 2)
        if LOOKUP:
            _near_pairs(kind, planes + 2 * place, lots, tables, limits, to)
        elif BYTES:
            _near_planes_64(kind, planes + place, tables, limits, lots, to)
            _near_planes_64(kind, planes + place + half, tables, limits, later_lots, to + 8)
        else:
            _count_64(kind, words + place, queries, limits, lots, to)
            _count_64(kind, words + place + half, queries, limits, later_lots, to + 8)


@intrinsic
def word_at(typingctx, kind, address):
    """The signature at an address, as uint64."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[1]), ir.IntType(kind.bits))
        return b.zext(x, v.I64) if kind.bits == 32 else x

    return types.uint64(kind, types.intp), codegen


@jit
def make_tables(queries, bits, tables):
    """What is compared with signatures, uint8[pairs, 16, 16]: see `pairs`; or, of each byte of a
    query, four copies; or nothing."""
    if LOOKUP:
        for h in range(len(queries)):
            _make_table(queries[h], bits, h % 2, tables[h // 2])
    elif BYTES:
        for h in range(len(queries)):
            for i in range(bits // 8):
                byte = (queries[h] >> np.uint64(8 * i)) & np.uint64(255)
                store(address(tables), QUERY_BYTES * h + 4 * i, np.uint32(byte * _COPIES))


@jit
def _make_table(query, bits, second, table):
    for i in range(bits // 4):
        half = (query >> np.uint64(4 * i)) & np.uint64(15)
        for x in range(16):
            d = min(bit_count(half ^ np.uint64(x)), 3 if i % 4 == 3 else 4)
            if second:
                table[i, x] |= d << 4
            else:
                table[i, x] = d


@jit
def set_limit(kind, limits, h, limit):
    """Call tokens near query h that cost less than `limit`; limits: an array."""
    write_limits(kind, limit, address(limits) + h * LIMIT_BYTES)
