"""Writing the sketches of stored keys: the bits of the rotated key, and a factor (see `scan`)."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from ..dense import dense
from .arguments import Keys

TOKENS = 16  # whose keys a thread sketches at a time


@jit
def put_sketch(x, padded, rotation, bits, factor, y):
    """Write bits and factor of the key float32[padded] x; rotation: [in][out], then zeros.

    y: scratch float32[padded]; all are addresses.
    """
    dense(x, padded, rotation, rotation + 4 * padded * padded, padded, y)
    norm, total = np.float32(0.0), np.float32(0.0)
    for i in range(padded):
        xi, yi = v.load_one_f32(x, 4 * i), v.load_one_f32(y, 4 * i)
        norm += xi * xi
        total += abs(yi)
    for i in range(0, padded, 8):
        byte = 0
        for bit in range(8):
            byte |= (v.load_one_f32(y, 4 * (i + bit)) > np.float32(0.0)) << bit
        v.store(bits, i // 8, np.uint8(byte))
    v.store_f16(factor, 0, norm / total if total > 0.0 else np.float32(0.0))


@jit
def _subtract(x, y, n):
    """x -= y, n floats at addresses."""
    for i in range(0, 4 * n, 64):
        v.store(x, i, v.load_f32(x, i) - v.load_f32(y, i))


@kernel
def sketch_keys_kernel(
    share: Share, keys: Keys, n_kv_heads: int, padded: int, first: int, last: int
):
    """Tokens first .. last-1, less their centre. About 2 padded^2 operations a key."""
    layout, rotation = keys.layout, address(keys.rotation)
    x = address(of_thread(keys.works, share.part))
    begin = first + TOKENS * take(share.ticket)
    while begin < last:
        for t in range(begin, min(begin + TOKENS, last)):
            segment, place = t // SEGMENT, t % SEGMENT
            for j in range(n_kv_heads):
                head = keys.segments[segment] + j * layout.head_bytes
                read_key(head + place // TILE * layout.tile_bytes, place % TILE, layout, x)
                _subtract(x, address(keys.centre[j]), padded)
                item = j * SEGMENT + place
                bits = keys.bits[segment] + item * padded // 8
                factor = keys.factors[segment] + 2 * item
                put_sketch(x, padded, rotation, bits, factor, x + 4 * padded)
        begin = first + TOKENS * take(share.ticket)
