"""Which signatures of a segment lie within a distance of each query: the Hamming scan's inner step.

Signatures are read once for up to 4 queries. The bits of signature xor query are counted (vpopcntd,
cnt, or what LLVM makes of it); with AVX2, which has no such instruction, `pairs` looks them up.

    queries  uint64 [query]                     words    u32 or u64 [token]
    limits   int8 [query][64], all the same     masks    uint64 [query][16 words]

A mask holds at least the tokens whose distance is below the query's limit.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from .. import simd as v
from ..attention.layout import SEGMENT
from ..attention.shape import at, read, write
from ..cache import jit
from ..simd import prefetch_l1, set_i8, store
from .pairs import TABLE_BYTES, TOKENS, near_pair, spread_128

WORDS = SEGMENT // 64  # of a mask of one segment
MASK_BYTES = 8 * WORDS
PLANE_BYTES = 16 * TOKENS
LOOKUP = v.VARIANT == "avx2"


class Kind(types.Type):
    """Bits of a signature (32 or 64) and queries compared together (1 to 4), as constants."""

    def __init__(self, bits: int, queries: int) -> None:
        self.bits, self.queries = bits, queries
        super().__init__(f"signatures_{bits}_{queries}")


register_model(Kind)(models.OpaqueModel)


@intrinsic(prefer_literal=True)
def kind_of(typingctx, bits, queries):
    """The Kind for two integer constants."""
    out = Kind(bits.literal_value, queries.literal_value)
    return out(bits, queries), lambda ctx, b, sig, vals: ctx.get_dummy_value()


@intrinsic
def _count_64(typingctx, kind, words, queries, limits, masks):
    """Bit t of masks[query] = token t of 64 is nearer than the query's limit; addresses all."""

    def codegen(ctx, b, sig, vals):
        words, queries, limits, masks = (at(b, x) for x in vals[1:])
        word, name = ir.IntType(kind.bits), f"llvm.ctpop.v64i{kind.bits}"
        sig = read(b, words, 0, v.vty(word, 64))
        for h in range(kind.queries):
            q = v.splat(b, read(b, queries, 8 * h, word), 64)
            d = b.trunc(v.call(b, name, sig.type, b.xor(sig, q)), v.vty(v.I8, 64))
            near = b.icmp_signed(">", read(b, limits, 64 * h, d.type), d)
            write(b, masks, h * MASK_BYTES, b.bitcast(near, v.I64))
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n), codegen


@intrinsic
def _pairs_of(typingctx, kind):
    """Pairs of queries, the last one perhaps of one query and of what stands behind it."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(v.I64, -(-kind.queries // 2))


@jit
def near_segment(kind, words, ahead, item_bytes, queries, tables, limits, planes, masks):
    """Masks of the 1,024 tokens at address `words`; asks for those at `ahead`. Addresses all."""
    for t in range(0, SEGMENT, TOKENS):
        for line in range(0, TOKENS * item_bytes, 64):  # hardware stops at the end of a page
            prefetch_l1(ahead, t * item_bytes + line)
        here, to = words + t * item_bytes, masks + t // 8
        if LOOKUP:
            spread_128(kind, here, planes)
            for p in range(_pairs_of(kind)):
                near_pair(
                    kind, planes, tables + p * TABLE_BYTES, limits + 2 * p * 64,
                    to + 2 * p * MASK_BYTES,
                )  # fmt: skip
        else:
            _count_64(kind, here, queries, limits, to)
            _count_64(kind, here + 64 * item_bytes, queries, limits, to + 8)


@intrinsic
def word_at(typingctx, kind, address):
    """The signature at an address, as uint64."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[1]), 0, ir.IntType(kind.bits))
        return b.zext(x, v.I64) if kind.bits == 32 else x

    return types.uint64(kind, types.intp), codegen


@intrinsic
def filled_words(typingctx, kind, masks):
    """Bit 16 h + w = word w of query h's mask is not 0."""

    def codegen(ctx, b, sig, vals):
        n = WORDS * kind.queries
        x = read(b, at(b, vals[1]), 0, v.vty(v.I64, n))
        some = b.icmp_unsigned("!=", x, v.const(x.type, 0))
        some = b.bitcast(some, ir.IntType(n))
        return some if n == 64 else b.zext(some, v.I64)

    return types.uint64(kind, types.intp), codegen


low_bit = v.emits(types.int64, types.uint64)(
    lambda b, m: v.call(b, "llvm.cttz.i64", v.I64, m, ir.Constant(ir.IntType(1), 0))
)  # 64 of 0
bit_count = v.emits(types.int64, types.uint64)(lambda b, m: v.call(b, "llvm.ctpop.i64", v.I64, m))


@jit
def make_tables(queries, bits, tables):
    """tables uint8[pairs, 16, 16], bits / 4 rows of each: see `pairs`."""
    for h in range(len(queries)):
        for i in range(bits // 4):
            half = (queries[h] >> np.uint64(4 * i)) & np.uint64(15)
            for x in range(16):
                d = min(bit_count(half ^ np.uint64(x)), 3 if i % 4 == 3 else 4)
                if h % 2:
                    tables[h // 2, i, x] |= d << 4
                else:
                    tables[h // 2, i, x] = d


@jit
def set_limit(limits, h, limit, bits):
    """Make tokens nearer than `limit` those that are near query h."""
    unit = 128 // bits if LOOKUP and h % 2 else 1  # of the second queries of pairs
    store(limits, 64 * h, set_i8(min(limit * unit, 127)))


@jit
def inside(word, first, last):
    """Bits of mask word `word` (64 positions from 64 * word on) within first .. last-1."""
    ones = ~np.uint64(0)
    lo, hi = first - 64 * word, last - 64 * word
    if lo >= 64 or hi <= 0:
        return np.uint64(0)
    if lo > 0:
        ones = ones << np.uint64(lo)
    if hi < 64:
        ones = ones & ((np.uint64(1) << np.uint64(hi)) - np.uint64(1))
    return ones


@jit
def trim(masks, segment, first, last):
    """Clear the bits of a segment's masks uint64[queries, WORDS] outside first .. last-1."""
    if first > segment * SEGMENT or last < (segment + 1) * SEGMENT:
        for h in range(masks.shape[0]):
            for w in range(WORDS):
                masks[h, w] &= inside(segment * WORDS + w, first, last)
