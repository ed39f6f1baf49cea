"""The arrays of the kernels for sketches, as `steps.Table` says them. Imports no Numba."""

KEYS = "i8 i8 i8 i8 f4 f4:2"  # segments, facts, bits, factors, rotation, works
TOKENS = 16  # whose keys a thread sketches at a time
CALL = "f4:3 i8 i8 i8 f4 u4:2 i8"  # q, segments, bits, factors, rotation, index, counts
SCRATCH = "f4:3 f4:3 i1:4 u1:2 u1:2 u1:3 u8:4 i1:4 i8:2 f4:2 u8:3 i8:2 u8:3 u8:2 u8:2 i8:2"
"""rows, turned, sums, rooms, works, limits, masks, near, orders, best, entries, seen, spare, marks,
chosen, histograms: of each thread."""
