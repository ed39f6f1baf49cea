"""Masks of a segment's tokens: a bit for each token that may be a candidate of a query.

masks  uint64 [query][16 words], bit t % 64 of word t // 64 for token t of the segment
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.launch.atomics import word
from ...jit.simd import at, read, store
from ..attention.layout import SEGMENT

WORDS = SEGMENT // 64  # of a mask of one segment
MASK_BYTES = 8 * WORDS


class Kind(types.Type):
    """Bits of a signature or sketch, and queries (1 to 4) that share a pass, as constants."""

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
def bits_of(typingctx, kind):
    """Bits of a signature or sketch of this kind."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(v.I64, kind.bits)


@intrinsic
def queries_of(typingctx, kind):
    """How many queries of this kind are compared at a time."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(v.I64, kind.queries)


@intrinsic
def filled_words(typingctx, kind, masks):
    """Bit 16 h + w: whether word w of query h's mask is not 0."""

    def codegen(ctx, b, sig, vals):
        n = WORDS * kind.queries
        x = read(b, at(b, vals[1]), v.vty(v.I64, n))
        filled = b.icmp_unsigned("!=", x, v.const(x.type, 0))
        filled = b.bitcast(filled, ir.IntType(n))
        return filled if n == 64 else b.zext(filled, v.I64)

    return types.uint64(kind, types.intp), codegen


low_bit = v.emits(types.int64, types.uint64)(
    lambda b, m: v.call(b, "llvm.cttz.i64", v.I64, m, ir.Constant(ir.IntType(1), 0))
)  # 64 of 0
bit_count = v.emits(types.int64, types.uint64)(lambda b, m: v.call(b, "llvm.ctpop.i64", v.I64, m))


@intrinsic
def bits_in(typingctx, mask):
    """How many bits of the uint64[16] at an address are set."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), v.vty(v.I64, WORDS))
        counts = v.call(b, f"llvm.ctpop.v{WORDS}i64", x.type, x)
        return v.call(b, f"llvm.vector.reduce.add.v{WORDS}i64", v.I64, counts)

    return types.int64(types.intp), codegen


@jit
def inside(word, first, stop):
    """The bits of word `word` (positions 64 * word on) that stand for first .. stop-1."""
    ones = ~np.uint64(0)
    lo, hi = first - 64 * word, stop - 64 * word
    if lo >= 64 or hi <= 0:
        return np.uint64(0)
    if lo > 0:
        ones = ones << np.uint64(lo)
    if hi < 64:
        ones = ones & ((np.uint64(1) << np.uint64(hi)) - np.uint64(1))
    return ones


@jit
def trim(masks, segment, first, stop):
    """Clear the bits of a segment's masks uint64[queries, WORDS] outside first .. stop-1."""
    if first > segment * SEGMENT or stop < (segment + 1) * SEGMENT:
        for h in range(masks.shape[0]):
            for w in range(WORDS):
                masks[h, w] &= inside(segment * WORDS + w, first, stop)


@jit
def hide(masks, segment, taken):
    """Clear the bits of a segment's masks uint64[queries, WORDS] that are set in taken uint64[]:
    a bit for each token that does not compete, or no words at all."""
    if len(taken) > 0:
        for w in range(WORDS):
            others = ~taken[segment * WORDS + w]
            for h in range(masks.shape[0]):
                masks[h, w] &= others


@jit
def places_of(words, filled, places):
    """Write the numbers of the bits that are set in words uint64[16] to places uint32[].

    Returns how many. words, places: addresses; filled: which words are not 0. Four of a word are
    written at a time, and what is too much is overwritten: the CPU would mispredict the end of a
    loop over the bits of each word, which costs more than all the rest.
    """
    n = 0
    while filled:
        w = low_bit(filled)
        filled &= filled - np.uint64(1)
        bits = np.uint64(word(words, 8 * w))
        then = n + bit_count(bits)
        while True:
            for i in range(4):
                store(places, 4 * (n + i), np.uint32(64 * w + low_bit(bits)))
                bits &= bits - np.uint64(1)
            n += 4
            if n >= then:
                break
        n = then
    return n
