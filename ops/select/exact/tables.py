"""The arrays of the kernels for exact products, as `steps.Table` says them. Imports no Numba."""

CALL = "f4:3 i8 u4:2 i8"  # q, segments, index, counts
SCRATCH = "f4:3 u1:2 f4:2 u8:3 i8:2 u8:3 u8:2 i8:2"
"""rows, works, limits, entries, seen, spare, marks, histograms: of each thread."""
PRODUCTS = "f4:3 i8 f4:3 u1:2 f4:2"  # q, segments, rows, works, products
