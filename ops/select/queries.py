"""What a choice needs of its queries: rows like those of the keys, and tables of their sums."""

import numpy as np

from ...jit.cached import jit
from ..attention.rotation import rotate_row


@jit
def pack_queries(q, j, group, rotation, rows):
    """The query heads of KV head j into rows float32[heads, padded], rotated where K is."""
    for h in range(group):
        for i in range(rows.shape[1]):
            rows[h, i] = q[0, j * group + h, i] if i < q.shape[2] else np.float32(0.0)
        if rotation:
            rotate_row(rows[h].ctypes.data, rows.shape[1], rotation)


@jit
def make_query_tables(y, padded, tables):
    """tables int8[padded / 4, 16]: entry x of half byte i = sum of +-y_(4 i + bit), bit set: +.

    Scaled so that no sum of entries leaves int8; gives what a unit of them stands for.
    """
    total = np.float32(0.0)
    for i in range(padded):
        total += abs(y[i])
    scale = np.float32(127 - padded // 8) / total if total > 0.0 else np.float32(0.0)
    for i in range(padded // 4):
        for x in range(16):
            entry = np.float32(0.0)
            for bit in range(4):
                entry += y[4 * i + bit] if x >> bit & 1 else -y[4 * i + bit]
            tables[i, x] = np.int8(np.rint(entry * scale))
    return total / np.float32(127 - padded // 8)
