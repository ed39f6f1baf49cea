"""Writing the blocks of stored keys into their column; `layout` draws them."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from ..sketch.keys import put_sketch
from .arguments import Keys
from .layout import BLOCK, BLOCKS, offsets_of
from .order import dot, mean_of, put_in_order

_offsets = jit(offsets_of)


@jit
def _read_keys(tiles, layout, bits, x):
    """Read the 1,024 keys of a KV head's segment at `tiles` into x float32[1024, bits]."""
    for t in range(SEGMENT):
        read_key(tiles + t // TILE * layout.tile_bytes, t % TILE, layout, x + 4 * bits * t)


@jit
def _put_mean(mean, bits, part, block):
    """Round the mean at an address to 8 bits, and write it to the column too."""
    at, top = _offsets(bits), np.float32(0.0)
    for i in range(bits):
        top = max(top, abs(v.load_one_f32(mean, 4 * i)))
    scale = top / np.float32(127.0)
    inverse = np.float32(1.0) / scale if scale > 0.0 else np.float32(0.0)
    for i in range(bits):
        rounded = np.rint(v.load_one_f32(mean, 4 * i) * inverse)
        v.store(part, at.means + BLOCKS * i + block, np.int8(rounded))
        v.store(mean, 4 * i, np.float32(rounded * scale))
    v.store(part, at.scales + 4 * block, scale)


@jit
def _put_block(x, order, bits, rotation, part, block, work):
    """Write one block's mean, spread and sketches; order uint16[32], work: 5 * bits floats."""
    at, mean, key, sketch = _offsets(bits), work, work + 4 * bits, work + 12 * bits
    mean_of(x, order, bits, mean)
    _put_mean(mean, bits, part, block)
    squares = np.float32(0.0)
    for t in range(BLOCK):
        row = x + 4 * bits * np.int64(order[t])
        for i in range(0, 4 * bits, 64):
            v.store(key, i, v.load_f32(row, i) - v.load_f32(mean, i))
        squares += dot(key, key, bits)
        factor = part + at.factors + 2 * (BLOCK * block + t)
        put_sketch(key, bits, rotation, sketch, factor, key + 4 * bits)
        for i in range(bits // 8):
            byte = v.load_u8(sketch, i)
            v.store(part, (bits // 8 * block + i) * BLOCK + t, byte)
        v.store(part, at.order + 2 * (BLOCK * block + t), order[t])
    spread = np.sqrt(squares / np.float32(BLOCK))
    v.store(part, at.spreads + 4 * block, np.float32(spread))


@kernel
def block_keys_kernel(share: Share, keys: Keys, n_kv_heads: int, bits: int, first: int, stop: int):
    """Segments first .. stop-1; some 2 bits^2 + 100 bits operations a key."""
    part, order = share.part, keys.order[share.part]
    x, rotation = address(keys.works[part]), address(keys.rotation)
    rows = x + 4 * bits * SEGMENT
    item = take(share.ticket)
    while item < (stop - first) * n_kv_heads:
        segment, j = first + item // n_kv_heads, item % n_kv_heads
        _read_keys(keys.segments[segment] + j * keys.layout.head_bytes, keys.layout, bits, x)
        put_in_order(
            x, bits, order, rows, keys.entries[part], keys.spare[part], keys.histogram[part]
        )
        to = keys.items[segment] + j * _offsets(bits).end
        for block in range(BLOCKS):
            tokens = order[BLOCK * block : BLOCK * (block + 1)]
            _put_block(x, tokens, bits, rotation, to, block, rows)
        item = take(share.ticket)
