"""NaN and infinity in stored keys and values: which tokens have them.

Only f16 numbers can be either: the elements of f16 rows, and the scales of all other types.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import U8
from ...ops.attention.layout import KV_TYPES, TILE, TILES, TileLayout

Flags = NDArray[np.bool_]
_EXPONENT = np.uint16(0x7C00)  # of an f16; all bits set: NaN or infinity


def infinite_f16(numbers: U8) -> Flags:
    """Whether any of the f16 in the bytes of the last axis is NaN or infinite: bool (…)."""
    bits = np.ascontiguousarray(numbers).view(np.uint16)
    return np.asarray(((bits & _EXPONENT) == _EXPONENT).any(-1))


def infinite_rows(rows: U8, layout: TileLayout) -> tuple[Flags, Flags]:
    """Whether K, and V, of a token are not finite: bool (…); rows uint8 (…, bytes): K row, V row,
    scale row."""
    k, v = layout.k_row_bytes, layout.k_row_bytes + layout.v_row_bytes
    scales = v + layout.v_scale
    scaled = [KV_TYPES[name].scale_bytes > 0 for name in (layout.k_type, layout.v_type)]
    k_numbers = rows[..., v:scales] if scaled[0] else rows[..., :k]
    v_numbers = rows[..., scales:] if scaled[1] else rows[..., k:v]
    return infinite_f16(k_numbers), infinite_f16(v_numbers)


def infinite_tokens(segment: U8, layout: TileLayout) -> tuple[Flags, Flags]:
    """The same of a layer's segment: bool (J, 1,024); segment uint8 (bytes,): [kv head][tile]."""
    tiles = segment.reshape(-1, TILES, layout.tile_bytes)
    parts = (
        (0, layout.k_row_bytes),
        (layout.v_offset, layout.v_row_bytes),
        (layout.scale_offset, layout.scale_row_bytes),
    )
    rows = [
        tiles[..., start : start + TILE * n].reshape(len(tiles), TILES * TILE, n)
        for start, n in parts
    ]
    return infinite_rows(np.concatenate(rows, -1), layout)
