"""One KV head's query heads times its keys: what attention and choices begin with."""

from ....jit.cached import jit
from .. import shape as of
from ..layout import TILE
from ..work import HEAD_SCORES, PARTS_BYTES
from .ahead import ask_keys
from .rows import find_first, next_tile, tile_in
from .steps import fold, key_step, tile_parts, two_keys, widen_scales

_AHEAD = 2  # tiles: about the time that memory takes to answer


@jit
def sweep_keys(shape, q, tile, scales, parts, ahead):
    """Partial sums of q[h] . key for the 16 keys of a tile; scales: widened, of the tile.

    Keys `ahead` (a tile's, or those of a list's rows) are asked for.
    """
    row_bytes, scale_bytes = of.k_row_bytes(shape), 2 * of.scale_row_bytes(shape)
    for r in range(0, TILE, 2):
        ask_keys(shape, ahead, r)
        row, scale = tile + r * row_bytes, scales + r * scale_bytes
        key_step(
            shape, q, row, row + row_bytes, scale, scale + scale_bytes,
            parts + r // 2 * two_keys(shape),
        )  # fmt: skip


@jit
def key_scores(shape, q, base, lo, hi, parts, s):
    """s[h][t] = q[h] . key t for all tokens of the tiles that hold lo..hi-1; `base`: head segment.

    Folding a tile waits for the next one: its partial sums have then left the store buffer.
    """
    tile_bytes, turn = of.tile_bytes(shape), tile_parts(shape)
    scales = parts + PARTS_BYTES
    first, last = lo // TILE, (hi + TILE - 1) // TILE
    for i in range(first, last):
        tile = base + i * tile_bytes
        widen_scales(shape, tile + of.scale_offset(shape), scales)
        sweep_keys(shape, q, tile, scales, parts + i % 2 * turn, tile + _AHEAD * tile_bytes)
        if i > first:
            fold(shape, parts + (i - 1) % 2 * turn, s + 4 * TILE * (i - 1), HEAD_SCORES)
    fold(shape, parts + (last - 1) % 2 * turn, s + 4 * TILE * (last - 1), HEAD_SCORES)


@jit
def listed_scores(shape, q, index, segments, head, room, parts, s):
    """As `key_scores`, of the tokens index uint32[n]; room: of `listed_work_bytes`."""
    tile, turn, scales = tile_in(room), tile_parts(shape), parts + PARTS_BYTES
    n_tiles = (len(index) + TILE - 1) // TILE
    find_first(shape, index, segments, head, False, room)
    for i in range(n_tiles):
        ahead = next_tile(shape, index, i, segments, head, False, room)
        widen_scales(shape, tile + of.scale_offset(shape), scales)
        sweep_keys(shape, q, tile, scales, parts + i % 2 * turn, ahead)
        if i > 0:
            fold(shape, parts + (i - 1) % 2 * turn, s + 4 * TILE * (i - 1), HEAD_SCORES)
    last = n_tiles - 1
    fold(shape, parts + last % 2 * turn, s + 4 * TILE * last, HEAD_SCORES)
