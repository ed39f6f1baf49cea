"""Writing the boxes of stored keys into their column; `layout` draws them."""

import numpy as np

from kvarn.jit import simd as v
from kvarn.jit.cached import jit
from kvarn.jit.launch.atomics import take
from kvarn.jit.launch.define import Share, kernel
from kvarn.jit.launch.views import address, of_thread
from kvarn.ops.attention.keys import read_key
from kvarn.ops.attention.layout import BLOCK, SEGMENT, TILE, TILES

from .arguments import Keys
from .layout import LINE, QUARTERS, scales_offset

ROW = 4 * 256  # bytes between the rows of a thread's work
_scales_offset = jit(scales_offset)


@jit
def _read_box(tile, n, layout, work):
    """The least and greatest of the first n keys of a tile, into the rows after a key's."""
    least, greatest = work + ROW, work + 2 * ROW
    for t in range(n):
        read_key(tile, t, layout, work)
        for i in range(0, 4 * BLOCK * layout.blocks, 64):
            x = v.load_f32(work, i)
            v.store(least, i, v.vmin(x, v.load_f32(least, i)) if t else x)
            v.store(greatest, i, v.vmax(x, v.load_f32(greatest, i)) if t else x)


@jit
def _put_box(work, dimensions, part, tile):
    """Round the box outward and write it as tile number `tile` of the segment at `part`."""
    least, greatest, quarter = work + ROW, work + 2 * ROW, dimensions // QUARTERS
    for g in range(QUARTERS):
        top = np.float32(0.0)
        for d in range(g * quarter, (g + 1) * quarter):
            low, high = v.load_one_f32(least, 4 * d), v.load_one_f32(greatest, 4 * d)
            top = max(top, -low, high)
        scale = top / np.float32(127.0)
        inverse = np.float32(1.0) / scale if scale > 0.0 else np.float32(0.0)
        v.store(part, _scales_offset(dimensions) + 4 * (TILES * g + tile), np.float32(scale))
        for d in range(g * quarter, (g + 1) * quarter):
            # A rounding error may lead past 127 by a few billionths of it; `scan` allows for that.
            low = max(np.floor(v.load_one_f32(least, 4 * d) * inverse), np.float32(-127.0))
            high = min(np.ceil(v.load_one_f32(greatest, 4 * d) * inverse), np.float32(127.0))
            v.store(part, 2 * LINE * d + tile, np.int8(low))
            v.store(part, 2 * LINE * d + LINE + tile, np.int8(high))


@kernel
def bound_tiles_kernel(
    share: Share, keys: Keys, n_kv_heads: int, dimensions: int, first: int, last: int
):
    """The tiles that hold tokens first .. last-1; later tokens of the last tile do not count.

    A thread takes a KV head of a segment at a time: its tiles share cache lines.
    """
    layout, work = keys.layout, address(of_thread(keys.works, share.part))
    oldest, head_bytes = first // SEGMENT, 2 * LINE * dimensions + 4 * QUARTERS * TILES
    n = (last - 1) // SEGMENT + 1 - oldest
    item = take(share.ticket)
    while item < n * n_kv_heads:
        segment, j = oldest + item // n_kv_heads, item % n_kv_heads
        here = keys.segments[segment] + j * layout.head_bytes
        part = keys.items[segment] + j * head_bytes
        lo, hi = max(first - segment * SEGMENT, 0), min(last - segment * SEGMENT, SEGMENT)
        for tile in range(lo // TILE, (hi + TILE - 1) // TILE):
            n_keys = min(hi - TILE * tile, TILE)
            _read_box(here + tile * layout.tile_bytes, n_keys, layout, work)
            _put_box(work, dimensions, part, tile)
        item = take(share.ticket)
