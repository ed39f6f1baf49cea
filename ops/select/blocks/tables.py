"""The arrays of the kernels for blocks, as `steps.Table` says them. Imports no Numba."""

from ..sketch import tables as sketches

BUILD = "i8 i8 i8 f4 f4:2 u2:2 u8:2 u8:2 i8:2"
"""segments, facts, items, rotation; works, orders, entries, spare, histograms: of each thread."""
CALL = "f4:3 i8 i8 f4 u4:2 i8 i8"  # q, segments, items, rotation, index, counts, looked
SCRATCH = f"{sketches.SCRATCH} f4:3 f4:2 f4:2 f4:4 f4:4 u8:3 f4:2 u4:2"
"""Those of sketches, then queries, reach, units, centres, bounds, wanted, block, listed."""
