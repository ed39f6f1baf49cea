"""The arrays of the kernels for signatures, as `steps.Table` says them. Imports no Numba."""

ENCODE_KEYS = "i8 i8 i8 f4 i8"  # segments, facts, items, weights, widths
ENCODE_ROWS = "f4:2 f4 i8 u8"  # x, weights, widths, signatures
TOKENS = 16  # whose keys a thread encodes at a time
CALL = "u8:2 i8 u4:2 i8"  # queries, items, index, counts
SCRATCH = "u1:4 u1:3 u1:2 u8:4 i8:3 i8:2 u8:3 u8:3 u8:2 i8:2"
"""tables, limits, planes, masks, tally, orders, entries, spare, marks,
histograms: of each thread.

tally: of each query the least distance and the first one beyond that count, and how many did.
"""
