"""The arrays of the kernels that evict, as `steps.Table` says them. Imports no Numba."""

SIGN = "i8 i8 f4:2 i8 i8 f4:2"  # segments, facts, planes, low, high, buffers
SLOTS = 64  # whose keys a thread signs at a time
CHOOSE = "f4:3 i8 i8 f4:2 f4:2 i8 i8 i8 i4:2 f4:2 u4:3 i4:3"
"""q, staged, facts, q_planes, k_planes, low, high, positions, taken; of each thread buffers, codes,
lanes."""
LEAVES = "i4:2 i4:2"  # taken, leaves
LEAVING = "f4:3 i8 i8 i4:2 f4:3 f4:2 i8:2"
"""q, segments, staged, leaves, out; of each thread works, newest."""
SETTLE = "i8 i8 i8 i8 i4:2"  # staged, segments, positions, facts, taken
POSITIONS = "i8"
