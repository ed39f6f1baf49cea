"""Sizes of scratch memory, and how kernels are chosen. Imports no Numba."""

from ...jit.variant import FEATURES, VARIANT

DIGIT = 11  # bits of a cost that one pass counts, see `best`
HISTOGRAM = 1 << DIGIT
FEW, SMALL_DIGIT = 512, 8  # entries, and the bits that one pass counts of fewer
MAX_WIDTH = 512  # of any layer of an encoder, in floats
NEAR_TOKENS = 128  # whose signatures are compared at a time, see `pairs`
PLANE_BYTES = 16 * NEAR_TOKENS
ROWS = 32  # of queries that choose side by side, see `signatures.rows`
SAMPLE_SEGMENTS = 4  # signatures that give their first limits, in segments, at most
LOTS = 4  # of tokens at one distance, at most, see `signatures.lots`
LIMIT_BYTES = 64 * LOTS  # of a query's limits of distances there
SAMPLED = 8  # segments of signatures that give the first limits of `signatures.counting`
LEVELS = 4  # distances that are told apart at a time, see `signatures.counting.limits`
COUNTERS = (LEVELS + 2) // 2  # vectors that count them
QUERY_WORDS = 32 + 8 * COUNTERS  # of a query there
DEEP = 400  # tokens for each one that is chosen, from which rows look for candidates
SLICED = VARIANT == "avx512" and "avx512vpopcntdq" in FEATURES  # rows can be compared as there


def half_words(bits: int) -> int:
    """Words of 64 bits of a half of a segment of signatures, see `signatures.counting.layout`."""
    return 8 * (2 + LOTS + 10 * -(-bits // 3))
