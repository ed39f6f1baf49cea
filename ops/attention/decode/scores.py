"""One KV head's query heads times its keys: what attention and choices begin with."""

from ...cache import jit
from ...simd import prefetch_l1
from .. import shape as of
from ..layout import TILE
from ..work import HEAD_SCORES, PARTS_BYTES
from .steps import fold, key_step, tile_parts, two_keys, widen_scales

_AHEAD = 2  # tiles: about the time that memory takes to answer


@jit
def sweep_keys(shape, q, tile, scales, parts, ahead):
    """Partial sums of q[h] . key for the 16 keys of a tile; scales: widened, of the tile.

    The keys of the tile at `ahead` are asked for.
    """
    row_bytes, scale_bytes = of.k_row_bytes(shape), 2 * of.scale_row_bytes(shape)
    for r in range(0, TILE, 2):
        for line in range(0, 2 * row_bytes, 64):
            prefetch_l1(ahead, r * row_bytes + line)
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
