"""What the index stores of the 1,024 tokens of a segment of a KV head: the boxes of its 64 tiles.

    box     [dimension][least, greatest][tile]   i8    times the scale of its quarter
    scales  [quarter of the dimensions][tile]    f32   largest magnitude in the quarter / 127

The least is rounded down and the greatest up, so every key of the tile lies in the box. Dimensions
are head_dim rounded up to a multiple of 16; a quarter has a scale of its own, because keys have
outlier channels. These are 9 bytes per token for head_dim 64: an eighth of the dimensions and 1.
Imports no Numba.
"""

from kvarn.ops.attention.layout import TILES

QUARTERS = 4
LINE = TILES  # bytes: one side of one dimension, of all tiles


def dimensions_of(head_dim: int) -> int:
    """Dimensions that are stored of keys of this length."""
    return -(-head_dim // 16) * 16


def scales_offset(dimensions: int) -> int:
    """Byte of the first scale in a KV head's segment."""
    return 2 * LINE * dimensions


def tile_item_bytes(head_dim: int) -> int:
    """Bytes of the column for each token."""
    return dimensions_of(head_dim) // 8 + 1
