"""Which of 64 signatures lie within a distance of each query: the inner step of the Hamming scan.

Signatures are read once for up to 4 queries. With AVX2 there is no instruction that counts bits, so
bytes are looked up: 32 signatures are transposed in registers to their bytes 0, bytes 1, …, and
each half byte indexes 16 distances that the query has prepared (xor and count in one step):

    distance of token t = sum over half bytes i of tables[query][i][half byte i of t]

Other CPUs count the bits of signature xor query (vpopcntd, cnt, or what LLVM makes of it).

    queries  uint64 [query]                              words    u32 or u64 [token]
    tables   uint8  [query][16][16]  (AVX2 only)   masks    uint64 [query][16 words]
    limits   uint8  [query][64], all the same: a token is near when its distance is below
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from .. import simd as v
from ..attention.layout import SEGMENT
from ..attention.shape import at, read, write
from ..cache import jit
from .lookup import BYTES, half_bytes_of, look_up

WORDS = SEGMENT // 64  # of a mask of one segment
MASK_BYTES = 8 * WORDS
TABLE_BYTES = 256  # 16 half bytes of up to 64 bits, 16 entries each
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


def _looked_up(b, words, tables, limits, masks, bits, queries):
    """Masks of 64 tokens; every pointer an i8*. A table serves both halves of them."""
    second = b.gep(words, [ir.Constant(v.I64, 4 * bits)])
    index = list(zip(half_bytes_of(b, words, bits), half_bytes_of(b, second, bits)))
    for h in range(queries):
        sums: list[ir.Value] = []
        for i, half_bytes in enumerate(index):
            table = read(b, tables, h * TABLE_BYTES + 16 * i, v.vty(v.I8, 16))
            d = [look_up(b, table, x) for x in half_bytes]
            sums = [b.add(x, y) for x, y in zip(sums, d)] if sums else d
        limit, near = read(b, limits, 64 * h, BYTES), []
        for x in sums:
            near.append(b.zext(b.bitcast(b.icmp_signed(">", limit, x), v.I32), v.I64))
        mask = b.or_(near[0], b.shl(near[1], ir.Constant(v.I64, 32)))
        write(b, masks, h * MASK_BYTES, mask)


def _counted(b, words, queries_at, limits, masks, bits, queries):
    """Masks of 64 tokens by counting bits."""
    word = ir.IntType(bits)
    sig = read(b, words, 0, v.vty(word, 64))
    for h in range(queries):
        q = v.splat(b, read(b, queries_at, 8 * h, word), 64)
        d = v.call(b, f"llvm.ctpop.v64i{bits}", sig.type, b.xor(sig, q))
        d = b.trunc(d, v.vty(v.I8, 64))
        near = b.icmp_signed(">", read(b, limits, 64 * h, d.type), d)
        write(b, masks, h * MASK_BYTES, b.bitcast(near, v.I64))


@intrinsic
def near_64(typingctx, kind, words, queries, tables, limits, masks):
    """Bit t of masks[query] = token t of 64 is nearer than the query's limit; addresses all."""

    def codegen(ctx, b, sig, vals):
        words, queries, tables, limits, masks = (at(b, x) for x in vals[1:])
        if LOOKUP:
            _looked_up(b, words, tables, limits, masks, kind.bits, kind.queries)
        else:
            _counted(b, words, queries, limits, masks, kind.bits, kind.queries)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n, n), codegen


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
    lambda b, m: v.call(b, "llvm.cttz.i64", v.I64, m, ir.Constant(ir.IntType(1), 1))
)
bit_count = v.emits(types.int64, types.uint64)(lambda b, m: v.call(b, "llvm.ctpop.i64", v.I64, m))


@jit
def make_tables(query, bits, table):
    """table uint8[16, 16], bits / 4 rows of it: distances of half bytes from the query."""
    for i in range(bits // 4):
        half = (query >> np.uint64(4 * i)) & np.uint64(15)
        for x in range(16):
            table[i, x] = bit_count(half ^ np.uint64(x))


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
