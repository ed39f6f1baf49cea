"""Sizes of scratch memory. Imports no Numba."""

DIGIT = 11  # bits of a cost that one pass counts, see `best`
HISTOGRAM = 1 << DIGIT
MAX_WIDTH = 512  # of any layer of an encoder, in floats
NEAR_TOKENS = 128  # whose signatures are compared at a time, see `pairs`
PLANE_BYTES = 16 * NEAR_TOKENS
