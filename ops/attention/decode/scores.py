"""Multiplies one KV head's query heads by its keys, for attention and for choosing tokens."""

from ....jit.cached import jit
from ....jit.simd import set_f32, store
from ..layout import TILE
from ..work import HEAD_SCORES, KEY_TILES, PARTS_BYTES
from .integer_keys import add_products
from .prefetch import prefetch_keys
from .products import multiply_keys, sum_parts, widen_scales
from .rows import locate_first, next_tile, tile_in


@jit
def sweep_keys(shape, q, tile, scales, parts, s, line, later):
    """s[h] = q[h] . key for the 16 keys of a tile, after `sum_parts`; scales: widened, of the tile.

    line: bytes from s[h] to s[h + 1]. Prefetches the keys of `later` (a tile, or rows of a list).
    """
    if shape.integer_keys:
        _multiply_integers(shape, q, tile, scales, s, line, later)
        return
    row_bytes = shape.k_row_bytes
    for r in range(0, TILE, 2):
        prefetch_keys(shape, later, r)
        row, scale = tile + r * row_bytes, scales + 4 * r
        pair = parts + r // 2 * shape.pair_bytes
        multiply_keys(shape, q, row, row + row_bytes, scale, scale + 4, pair)


@jit
def _multiply_integers(shape, q, tile, scales, s, line, later):
    """As `sweep_keys`. Prefetches pairs of later rows, evenly among the blocks of 32."""
    n = shape.blocks
    for h in range(shape.heads):
        store(s, line * h, set_f32(0.0))
    for i in range(n):
        for r in range(TILE * i // n & -2, TILE * (i + 1) // n & -2, 2):
            prefetch_keys(shape, later, r)
        add_products(shape, q, i, tile, scales, s, line)


@jit
def key_scores(shape, q, base, first, stop, parts, s, next_base):
    """s[h][t] = q[h] . key t for all tokens of the tiles that hold first..stop-1.

    base: address of the KV head's part of a segment; next_base: of the segment that comes next. A
    tile's parts are summed after the next tile's products, when they have left the store buffer.
    """
    tile_bytes, turn = shape.tile_bytes, shape.parts_bytes
    scales = parts + PARTS_BYTES
    first_tile, stop_tile = first // TILE, (stop + TILE - 1) // TILE
    for i in range(first_tile, stop_tile):
        tile, scores = base + i * tile_bytes, s + 4 * TILE * i
        later = base + (i + KEY_TILES) * tile_bytes
        if i + KEY_TILES >= stop_tile:
            later = next_base + (i + KEY_TILES - stop_tile) * tile_bytes
        widen_scales(shape, tile + shape.scale_offset, scales)
        sweep_keys(shape, q, tile, scales, parts + i % 2 * turn, scores, HEAD_SCORES, later)
        if i > first_tile:
            sum_parts(shape, parts + (i - 1) % 2 * turn, s + 4 * TILE * (i - 1), HEAD_SCORES)
    last = stop_tile - 1
    sum_parts(shape, parts + last % 2 * turn, s + 4 * TILE * last, HEAD_SCORES)


@jit
def gathered_scores(shape, q, index, segments, head, room, parts, s):
    """As `key_scores`, for the tokens index uint32[n]; room: `gathered_work_bytes`."""
    tile, turn, scales = tile_in(room), shape.parts_bytes, parts + PARTS_BYTES
    n_tiles = (len(index) + TILE - 1) // TILE
    locate_first(shape, index, segments, head, False, room)
    for i in range(n_tiles):
        later = next_tile(shape, index, i, segments, head, False, room)
        scores = s + 4 * TILE * i
        widen_scales(shape, tile + shape.scale_offset, scales)
        sweep_keys(shape, q, tile, scales, parts + i % 2 * turn, scores, HEAD_SCORES, later)
        if i > 0:
            sum_parts(shape, parts + (i - 1) % 2 * turn, s + 4 * TILE * (i - 1), HEAD_SCORES)
    last = n_tiles - 1
    sum_parts(shape, parts + last % 2 * turn, s + 4 * TILE * last, HEAD_SCORES)
