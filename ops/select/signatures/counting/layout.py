"""Where the kernels of this room find what is known of 512 signatures, and of a query.

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
              [COUNTERS][8]           how many were sure, of each word; or how many are at least as
                                      far as the limit, the limit + 1, …, two in each vector: the
                                      halves of a word

Bit b of 512 signatures is one vector, so a function of three bits of each is one instruction, which
takes the function's truth table (`logic`). Kernels take these places as addresses.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .....jit import simd as v
from ...work import LOTS, half_words

VECTOR = v.vty(v.I64, 8)
VECTOR_BYTES = 64
OF_GROUP = 10  # vectors
LOTS_AT = VECTOR_BYTES
SUMS_AT = VECTOR_BYTES * (LOTS + 2)
LIMIT_AT, CUTS_AT, COUNTS_AT = 8 * 22, 8 * 30, 8 * 32


def truth_table(function):
    """The truth table of a function of a list of three bits."""
    return sum(function([i >> 2 & 1, i >> 1 & 1, i & 1]) << i for i in range(8))


def logic(b, table, x, y, z):
    """For each three bits of x, y and z what the truth table says."""
    name = "llvm.x86.avx512.pternlog.q.512"
    return v.call(b, name, VECTOR, x, y, z, ir.Constant(v.I32, table))


def groups_of(bits):
    """Groups of three bits, of which the last one may have fewer."""
    return -(-bits // 3)


@intrinsic
def half_bytes(typingctx, kind):
    """Bytes of a half."""
    return types.int64(kind), lambda ctx, b, sig, vals: ir.Constant(
        v.I64, 8 * half_words(kind.bits)
    )
