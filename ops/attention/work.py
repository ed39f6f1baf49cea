"""Memory that a thread works in, by kernel. Imports no Numba."""

from .layout import SEGMENT, TILE

HEAD_SCORES = 4 * SEGMENT  # bytes of one head's scores
HEAD_PARTS = 16 * 4 * 4  # bytes of one head's partial sums
PARTS_BYTES = 2 * 4 * HEAD_PARTS
TILE_SCALES = 4 * TILE * 16  # bytes of a tile's scales as floats, at most
TILE_SCORES = 4 * TILE  # bytes of one head's scores of a tile
WORK_BYTES = 4 * HEAD_SCORES + PARTS_BYTES + TILE_SCALES
"""Of the scores of a block's keys, up to four query heads: those, partial sums, a tile's scales."""
TILE_WORK = PARTS_BYTES + TILE_SCALES + 4 * TILE_SCORES
"""Of a tile's attention, up to four query heads: partial sums, its scales, its scores."""
PREFETCH_TILES = 2
"""Tiles between a prefetch and its use: about the time that memory takes to answer."""
ADDRESSES = 8 * 3 * TILE
"""Bytes of where 16 listed tokens' keys, values and scales lie."""

ROWS = 96
"""Query rows of a block of a chunk: a multiple of every panel's height."""
MOST_KEYS = 128
"""Keys of a block of a chunk, at most."""


def token_work_bytes(padded: int, rows: int) -> int:
    """For one new token and `rows` query heads a KV head: a tile's work, sums, queries."""
    return TILE_WORK + rows * (TILE_SCORES + 4 * padded)


def gathered_work_bytes(tile_bytes: int) -> int:
    """For listed tokens: where the next ones lie, and a tile that rows are copied into."""
    return PREFETCH_TILES * ADDRESSES + tile_bytes


def chunk_work_floats(padded: int) -> int:
    """Floats for a chunk of new tokens, with rows of `padded` elements."""
    return 2 * ROWS * padded + 2 * MOST_KEYS * padded + MOST_KEYS * ROWS + 2 * ROWS
