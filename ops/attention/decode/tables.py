"""The arrays of attention over lists of tokens, as `steps.Table` says them. Imports no Numba."""

CALL = "f4:3 u4:2 i8 i8 f4:2 f4:3"  # q, index, counts, segments, log weights, out
SCRATCH = "u1:2 u1:2 f4:4 f4:3 f4:3 f4:2"
"""Of each thread works and rooms; partial, m and total of each block; merged rows."""
READ_AHEAD = "u4:2 i8 i8 i8"  # index, counts, segments, how often was asked
