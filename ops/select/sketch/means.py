"""Sums of stored keys, segment by segment: what their mean is made of."""

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ...attention.keys import read_key
from ...attention.layout import BLOCK, SEGMENT, TILE
from .arguments import KeySums


@jit
def _add(total, row, n_bytes):
    for i in range(0, n_bytes, 64):
        v.store(total, i, v.load_f32(total, i) + v.load_f32(row, i))


@kernel
def key_sums_kernel(share: Share, keys: KeySums, n_kv_heads: int, first: int, last: int):
    """Tokens first .. last-1; reads their K rows, one addition for each element."""
    layout, x = keys.layout, address(keys.works[share.part])
    oldest = first // SEGMENT
    item = take(share.ticket)
    while item < ((last - 1) // SEGMENT - oldest + 1) * n_kv_heads:
        number, j = item // n_kv_heads, item % n_kv_heads
        begin = (oldest + number) * SEGMENT
        tiles = keys.segments[oldest + number] + j * layout.head_bytes
        for t in range(max(first - begin, 0), min(last - begin, SEGMENT)):
            read_key(tiles + t // TILE * layout.tile_bytes, t % TILE, layout, x)
            _add(address(keys.sums[number, j]), x, 4 * BLOCK * layout.blocks)
        item = take(share.ticket)
