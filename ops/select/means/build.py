"""Writing the means of stored keys and values into their column; `layout` draws it."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ...attention.append import put_token
from ...attention.keys import read_key, read_value
from ...attention.layout import BLOCK as ELEMENTS
from ...attention.layout import SEGMENT, TILE
from ..sketch.keys import add_row
from .arguments import Stored
from .layout import BLOCK, BLOCKS, TILES
from .order import put_in_order


@jit
def _read_keys(tiles, layout, n, x):
    """Read the 1,024 keys of a KV head's segment at `tiles` into x float32[1024, n], padded."""
    for t in range(SEGMENT):
        read_key(tiles + t // TILE * layout.tile_bytes, t % TILE, layout, x + 4 * n * t)


@jit
def _put_mean(tiles, stored, tokens, block, to, work):
    """Write block `block`, of tokens uint16[32]; tiles, to: addresses of a KV head's part of its
    segment; work: address of a mean key, a mean value, a row, and a row with its padding."""
    layout, n = stored.layout, ELEMENTS * stored.layout.blocks
    key, value, row, padded = work, work + 4 * n, work + 8 * n, work + 12 * n
    for i in range(0, 8 * n, 64):
        v.store(key, i, v.set_f32(np.float32(0.0)))
    for t in range(BLOCK):
        token = np.int64(tokens[t])
        tile = tiles + token // TILE * layout.tile_bytes
        read_key(tile, token % TILE, layout, row)
        add_row(key, row, n)
        read_value(tile, token % TILE, layout, row)
        add_row(value, row, n)
        v.store(to, TILES * stored.means.tile_bytes + token, np.uint8(block))
    for i in range(0, 8 * n, 64):
        v.store(key, i, v.load_f32(key, i) * v.set_f32(np.float32(1 / BLOCK)))
    tile = to + block // TILE * stored.means.tile_bytes
    put_token(key, value, n, tile, block % TILE, stored.means, padded)


@kernel
def block_means_kernel(
    share: Share,
    stored: Stored,
    n_kv_heads: int,
    head_bytes: int,
    first: int,
    stop: int,
):
    """Segments first .. stop-1; reads their K twice and V once, some 100 n operations a key."""
    part, n = share.part, ELEMENTS * stored.layout.blocks
    order, x = stored.order[part], address(stored.works[part])
    work = x + 4 * n * SEGMENT
    item = take(share.ticket)
    while item < (stop - first) * n_kv_heads:
        segment, j = first + item // n_kv_heads, item % n_kv_heads
        tiles = stored.segments[segment] + j * stored.layout.head_bytes
        _read_keys(tiles, stored.layout, n, x)
        put_in_order(
            x, n, order, work, stored.entries[part], stored.spare[part], stored.histogram[part]
        )
        to = stored.items[segment] + j * head_bytes
        for block in range(BLOCKS):
            tokens = order[BLOCK * block : BLOCK * (block + 1)]
            _put_mean(tiles, stored, tokens, block, to, work)
        item = take(share.ticket)
