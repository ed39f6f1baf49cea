"""Writing the means of stored keys and values into their column; `layout` draws it."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention.append import put_token
from ...attention.keys import read_key, read_value
from ...attention.layout import BLOCK as ELEMENTS
from ...attention.layout import TILE
from ..blocks.layout import BLOCK, BLOCKS, offsets_of
from ..blocks.order import token_at
from ..sketch.keys import add_row
from .arguments import Stored
from .layout import TILES

_offsets = jit(offsets_of)


@jit
def _put_mean(tiles, stored, order, block, to, work):
    """Write one block; tiles, order, to: addresses of a KV head's part of its segment."""
    layout, n = stored.layout, ELEMENTS * stored.layout.blocks
    key, value, row, padded = work, work + 4 * n, work + 8 * n, work + 12 * n
    for i in range(0, 8 * n, 64):
        v.store(key, i, v.set_f32(np.float32(0.0)))
    for t in range(BLOCK):
        token = token_at(order, BLOCK * block + t)
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
    bits: int,
    head_bytes: int,
    first: int,
    stop: int,
):
    """Segments first .. stop-1; reads their K and V once."""
    work = address(of_thread(stored.works, share.part))
    item = take(share.ticket)
    while item < (stop - first) * n_kv_heads:
        segment, j = first + item // n_kv_heads, item % n_kv_heads
        tiles = stored.segments[segment] + j * stored.layout.head_bytes
        order = stored.blocks[segment] + j * _offsets(bits).end + _offsets(bits).order
        to = stored.items[segment] + j * head_bytes
        for block in range(BLOCKS):
            _put_mean(tiles, stored, order, block, to, work)
        item = take(share.ticket)
