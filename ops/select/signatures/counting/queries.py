"""What is kept for a query (`layout`): where its sums are, its limit, its cuts, and its counts."""

import numpy as np
from numba import types
from numba.extending import intrinsic

from .....jit import simd as v
from .....jit.cached import jit
from .....jit.simd import at, read, store
from ...masks import bit_count, bits_of
from ...work import COUNTERS
from .layout import (
    COUNTS_AT,
    CUTS_AT,
    LIMIT_AT,
    LOTS_AT,
    OF_GROUP,
    SUMS_AT,
    VECTOR,
    VECTOR_BYTES,
)


@jit
def put_query(kind, query, signature):
    """Write where the sums of a query with this signature are."""
    for group in range((bits_of(kind) + 2) // 3):
        value = np.int64(signature >> np.uint64(3 * group)) & 7
        odd = np.int64(bit_count(np.uint64(value))) & 1
        place = SUMS_AT + VECTOR_BYTES * OF_GROUP * group
        store(query, 8 * group, np.uint32(place + VECTOR_BYTES * odd))
        store(query, 8 * group + 4, np.uint32(place + VECTOR_BYTES * (2 + value)))


@jit
def put_limit(kind, query, limit):
    """Set the distance that a query's tokens are compared with, and count none yet."""
    offset = 2 * bits_of(kind) - (limit & ~1)
    store(query, LIMIT_AT, -np.int64(limit & 1))
    for i in range(1, 8):
        store(query, LIMIT_AT + 8 * i, -np.int64(offset >> i & 1))
    for i in range(8 * COUNTERS):
        store(query, COUNTS_AT + 8 * i, np.int64(0))


@jit
def put_cuts(query, sure, possible):
    """Call ties with a lot below `sure` chosen, and those below `possible` candidates."""
    store(query, CUTS_AT, np.int64(LOTS_AT + VECTOR_BYTES * sure))
    store(query, CUTS_AT + 8, np.int64(LOTS_AT + VECTOR_BYTES * possible))


@intrinsic
def _sum_words(typingctx, place):
    """The sum of 8 words."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), VECTOR)
        return v.call(b, "llvm.vector.reduce.add.v8i64", v.I64, x)

    return types.int64(types.intp), codegen


@jit
def counted(query, level):
    """How many tokens were as far from a query as its limit + `level`, or farther."""
    both = _sum_words(query + COUNTS_AT + VECTOR_BYTES * (level // 2))
    return both >> 32 * (level % 2) & 0xFFFFFFFF


@jit
def counted_sure(query):
    """How many tokens were sure, so that they were marked."""
    return _sum_words(query + COUNTS_AT)
