"""One KV head's query heads times its keys: the first step of attention and of choosing tokens."""

from ....jit.cached import jit
from .. import shape as of
from ..layout import TILE
from ..work import HEAD_SCORES, PARTS_BYTES, PREFETCH_TILES
from .prefetch import prefetch_keys
from .products import multiply_keys, sum_parts, widen_scales
from .rows import find_first, next_tile, tile_in


@jit
def sweep_keys(shape, q, tile, scales, parts, later):
    """Partial sums of q[h] . key for the 16 keys of a tile; scales: widened, of the tile.

    The keys of `later` (a tile, or rows of a list) are prefetched.
    """
    row_bytes, scale_bytes = of.k_row_bytes(shape), 2 * of.scale_row_bytes(shape)
    for r in range(0, TILE, 2):
        prefetch_keys(shape, later, r)
        row, scale = tile + r * row_bytes, scales + r * scale_bytes
        pair = parts + r // 2 * of.pair_bytes(shape)
        multiply_keys(shape, q, row, row + row_bytes, scale, scale + scale_bytes, pair)


@jit
def key_scores(shape, q, base, lo, hi, parts, s):
    """s[h][t] = q[h] . key t for all tokens of the tiles that hold lo..hi-1; `base`: head segment.

    A tile's parts are summed after the next tile's products, when they have left the store buffer.
    """
    tile_bytes, turn = of.tile_bytes(shape), of.parts_bytes(shape)
    scales = parts + PARTS_BYTES
    first, last = lo // TILE, (hi + TILE - 1) // TILE
    for i in range(first, last):
        tile = base + i * tile_bytes
        widen_scales(shape, tile + of.scale_offset(shape), scales)
        sweep_keys(shape, q, tile, scales, parts + i % 2 * turn, tile + PREFETCH_TILES * tile_bytes)
        if i > first:
            sum_parts(shape, parts + (i - 1) % 2 * turn, s + 4 * TILE * (i - 1), HEAD_SCORES)
    sum_parts(shape, parts + (last - 1) % 2 * turn, s + 4 * TILE * (last - 1), HEAD_SCORES)


@jit
def gathered_scores(shape, q, index, segments, head, room, parts, s):
    """As `key_scores`, of the tokens index uint32[n]; room: of `gathered_work_bytes`."""
    tile, turn, scales = tile_in(room), of.parts_bytes(shape), parts + PARTS_BYTES
    n_tiles = (len(index) + TILE - 1) // TILE
    find_first(shape, index, segments, head, False, room)
    for i in range(n_tiles):
        later = next_tile(shape, index, i, segments, head, False, room)
        widen_scales(shape, tile + of.scale_offset(shape), scales)
        sweep_keys(shape, q, tile, scales, parts + i % 2 * turn, later)
        if i > 0:
            sum_parts(shape, parts + (i - 1) % 2 * turn, s + 4 * TILE * (i - 1), HEAD_SCORES)
    last = n_tiles - 1
    sum_parts(shape, parts + last % 2 * turn, s + 4 * TILE * last, HEAD_SCORES)
