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
from .arguments import Stored
from .layout import TILES

_offsets = jit(offsets_of)


@jit
def _add(row, n, total):
    """total += row, n floats at addresses."""
    for i in range(0, 4 * n, 64):
        v.store(total, i, v.load_f32(total, i) + v.load_f32(row, i))


@jit
def _put_mean(tiles, given, order, block, to, work):
    """Write one block; tiles, order, to: addresses of a KV head's part of its segment."""
    layout, n = given.layout, ELEMENTS * given.layout.blocks
    key, value, row, padded = work, work + 4 * n, work + 8 * n, work + 12 * n
    for i in range(0, 8 * n, 64):
        v.store(key, i, v.set_f32(np.float32(0.0)))
    for t in range(BLOCK):
        token = token_at(order, BLOCK * block + t)
        tile = tiles + token // TILE * layout.tile_bytes
        read_key(tile, token % TILE, layout, row)
        _add(row, n, key)
        read_value(tile, token % TILE, layout, row)
        _add(row, n, value)
        v.store(to, TILES * given.means.tile_bytes + token, np.uint8(block))
    for i in range(0, 8 * n, 64):
        v.store(key, i, v.load_f32(key, i) * v.set_f32(np.float32(1 / BLOCK)))
    tile = to + block // TILE * given.means.tile_bytes
    put_token(key, value, n, tile, block % TILE, given.means, padded)


@kernel
def block_means_kernel(
    share: Share,
    given: Stored,
    n_kv_heads: int,
    bits: int,
    head_bytes: int,
    first: int,
    last: int,
):
    """Segments first .. last-1; reads their K and V once."""
    work = address(of_thread(given.works, share.part))
    item = take(share.ticket)
    while item < (last - first) * n_kv_heads:
        segment, j = first + item // n_kv_heads, item % n_kv_heads
        tiles = given.segments[segment] + j * given.layout.head_bytes
        order = given.blocks[segment] + j * _offsets(bits).end + _offsets(bits).order
        to = given.items[segment] + j * head_bytes
        for block in range(BLOCKS):
            _put_mean(tiles, given, order, block, to, work)
        item = take(share.ticket)
