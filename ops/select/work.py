"""Sizes of scratch memory. Imports no Numba."""

DIGIT = 11  # bits of a cost that one pass counts, see `best`
HISTOGRAM = 1 << DIGIT
FEW, SMALL_DIGIT = 512, 8  # entries, and the bits that one pass counts of fewer
MAX_WIDTH = 1024  # of any layer of an encoder, in floats
NEAR_TOKENS = 128  # whose signatures are compared at a time, see `pairs`
PLANE_BYTES = 16 * NEAR_TOKENS
ROWS = 32  # of queries that choose side by side, see `signatures.rows`
SAMPLE_SEGMENTS = 4  # signatures that give their first limits, in segments, at most
LOTS = 4  # of tokens at one distance, at most, see `signatures.lots`
LIMIT_BYTES = 64 * LOTS  # of a query's limits of distances there
