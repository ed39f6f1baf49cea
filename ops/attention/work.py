"""Memory that a thread works in, by kernel. Imports no Numba."""

from .layout import SEGMENT, TILE

HEAD_SCORES = 4 * SEGMENT  # bytes of one head's scores
HEAD_PARTS = 16 * 4 * 4  # bytes of one head's partial sums
PARTS_BYTES = 2 * 4 * HEAD_PARTS
TILE_SCALES = 4 * TILE * 16  # bytes of a tile's scales as floats, at most
TILE_SCORES = 4 * TILE  # bytes of one head's scores of a tile
WORK_BYTES = 4 * HEAD_SCORES + PARTS_BYTES + TILE_SCALES
"""Scores of a segment's keys for up to four query heads, partial sums, and a tile's scales."""
TILE_WORK = PARTS_BYTES + TILE_SCALES + 4 * TILE_SCORES
"""For attention over a tile with up to four query heads: partial sums, its scales, its scores."""
PREFETCH_TILES = 2
"""Tiles between a prefetch and its use: about the time that memory takes to answer."""
KEY_TILES = 4
"""The same where keys alone are read."""
MOST_TILES = max(PREFETCH_TILES, KEY_TILES)
"""Of lists that are found ahead."""
ADDRESSES = 8 * 3 * TILE
"""Bytes of the addresses of 16 listed tokens' keys, values and scales."""

ROWS = 96
"""Query rows of a block of a chunk: a multiple of every panel's height."""
MOST_KEYS = 128
"""Keys of a block of a chunk, at most."""


def token_work_bytes(padded: int, rows: int) -> int:
    """Bytes for one new token, `rows` query heads per KV head: a tile's work, totals, queries."""
    return TILE_WORK + rows * (TILE_SCORES + 4 * padded)


def gathered_work_bytes(tile_bytes: int) -> int:
    """Bytes for listed tokens: addresses of the next ones, and a tile that rows are copied into."""
    return MOST_TILES * ADDRESSES + tile_bytes


def chunk_work_floats(padded: int) -> int:
    """Floats for a chunk of new tokens, with rows of `padded` elements."""
    return 2 * ROWS * padded + 2 * MOST_KEYS * padded + MOST_KEYS * ROWS + 2 * ROWS
