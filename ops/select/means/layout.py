"""What is stored of the 32 blocks of a segment of a KV head, so that attention can read them.

    tiles   2 tiles of 16 rows of (head_dim, q8_0, q8_0): row r of tile i holds the mean key and the
            mean value of block 16 i + r, 8 bits an element and an f16 scale for each 32; where
            values are keys, they are one row
    blocks  [token] u8: the block in which a token stands

These are 5 bytes and a quarter per token for head_dim 64; a column has whole bytes, so it has 6.
Imports no Numba.
"""

from ...attention.layout import SEGMENT, TILE, TileLayout, layout_of

BLOCK = 32  # tokens
BLOCKS = SEGMENT // BLOCK
TILES = BLOCKS // TILE


def means_layout(head_dim: int) -> TileLayout:
    """How the means are stored, whatever the types of K and V."""
    return layout_of(head_dim, "q8_0", "q8_0")


def means_item_bytes(head_dim: int) -> int:
    """Bytes of the column for each token."""
    return -(-(TILES * means_layout(head_dim).tile_bytes + SEGMENT) // SEGMENT)
