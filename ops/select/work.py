"""Sizes of the memory that choosing works in. Imports no Numba."""

DIGIT = 11  # bits of a cost that one pass looks at, see `best`
HISTOGRAM = 1 << DIGIT
MAX_WIDTH = 512  # of any layer of an encoder, in floats
NEAR_TOKENS = 128  # whose signatures are compared together where they are looked up
PLANE_BYTES = 16 * NEAR_TOKENS
