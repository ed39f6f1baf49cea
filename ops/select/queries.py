"""Queries as choices read them: rows laid out as the keys are, and tables of their sums."""

import numpy as np

from ...jit.cached import jit
from ...jit.launch.views import address
from ..attention.decode.integer_keys import split_query
from ..attention.rotation import rotate_row
from .dense import dense
from .masks import bits_of

RANGE = 0.65
"""Sums of signs that tables of int8 tell apart, as a share of sqrt(bits) * |y|, the largest one.

The mean sum of a key is sqrt(2 / pi) of that times the cosine between it and the query, so those
with a cosine beyond 0.8 look alike. Rounding adds 8, 16, 32 and 64% of the estimate's own error
with 64, 128, 256 and 512 bits; 0.5 would add 6, 12, 24 and 48%, but lose a tenth of the best tokens
where all keys lie in six directions.
"""
LONG_RANGE = 0.4
"""The same beyond 512 bits, the sketches of latent attention: 0.65 would add 72% there and lose a
fifth of the best tokens. Those with a cosine beyond 0.5, which few rows so long have, look alike.
"""


@jit
def pack_queries(shape, q, j, group, rows):
    """The query heads of KV head j into rows float32[heads, padded], rotated where K is, and
    split where `integer_keys` multiply them."""
    rotation = shape.rotation if shape.rotates_k else 0
    for h in range(group):
        for i in range(rows.shape[1]):
            rows[h, i] = q[0, j * group + h, i] if i < q.shape[2] else np.float32(0.0)
        if rotation:
            rotate_row(rows[h].ctypes.data, rows.shape[1], rotation)
        if shape.integer_keys:
            split_query(shape, rows[h].ctypes.data)


@jit
def prepare_query(kind, query, head, h, search):
    """`tables_of` query head `head`, number h of those that share a pass; search: `Search`."""
    frame = query.keys.frame
    j = head // (query.q.shape[1] // len(frame.inverse))
    q, tables = query.q[0, head], search.tables[h]
    tables_of(kind, q, frame.inverse[j], query.keys.rotation, search.rotated, tables)


@jit
def tables_of(kind, q, inverse, rotation, rotated, tables):
    """Rotate the query float32[E] and make its tables.

    inverse: what it is multiplied by, see `Frame`; rotation: `Rotation`; rotated: scratch
    float32[2, bits].
    """
    bits = bits_of(kind)
    rotated[0, :] = 0.0
    for i in range(len(q)):
        rotated[0, i] = q[i] * inverse[i]
    weights = address(rotation.weights)
    bias = weights + 4 * bits * bits
    dense(address(rotated[0]), bits, weights, bias, bits, address(rotated[1]))
    _make_tables(rotated[1], bits, tables)


@jit
def _make_tables(y, bits, tables):
    """tables int8[bits / 4, 16]: entry x of half byte i = sum of +-y_(4 i + bit), bit set: +.

    Scaled so that a sum of 127, where sums saturate, is RANGE (or LONG_RANGE) * sqrt(bits) * |y|.
    """
    square = np.float32(0.0)
    for i in range(bits):
        square += y[i] * y[i]
    share = RANGE if bits <= 512 else LONG_RANGE
    unit = np.float32(share / 127.0) * np.sqrt(square * np.float32(bits))
    scale = np.float32(1.0) / unit if unit > 0.0 else np.float32(0.0)
    for i in range(bits // 4):
        for x in range(16):
            entry = np.float32(0.0)
            for bit in range(4):
                entry += y[4 * i + bit] if x >> bit & 1 else -y[4 * i + bit]
            tables[i, x] = np.int8(np.rint(entry * scale))
