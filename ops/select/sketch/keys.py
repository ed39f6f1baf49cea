"""Sketches of stored keys: bits of the rotated key and one factor (see `scan`)."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import step
from ....jit.launch.views import lent
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from ..dense import dense
from .tables import KEYS, TOKENS


@jit
def put_sketch(x, padded, rotation, bits, factor, y):
    """Bits and factor of the key of `padded` floats at address x; rotation `[in][out]`, then zeros.

    y: address of `padded` floats of scratch.
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


@step("iiiii")
def sketch_keys_kernel(part, parts, ticket, arrays, n_kv_heads, padded, first, last):
    """Tokens first .. last-1; works float32[threads, 2 * padded], zeros at first.

    About 2 padded^2 operations a key.
    """
    segments, facts, bits, factors, rotation, works = lent(arrays, KEYS)
    x, weights = np.int64(works[part].ctypes.data), np.int64(rotation.ctypes.data)
    begin = first + TOKENS * take(ticket)
    while begin < last:
        for t in range(begin, min(begin + TOKENS, last)):
            segment, place = t // SEGMENT, t % SEGMENT
            for j in range(n_kv_heads):
                tile = segments[segment] + j * facts[5] + place // TILE * facts[4]
                read_key(tile, place % TILE, facts, x)
                item = j * SEGMENT + place
                put_sketch(
                    x, padded, weights, bits[segment] + item * padded // 8,
                    factors[segment] + 2 * item, x + 4 * padded,
                )  # fmt: skip
        begin = first + TOKENS * take(ticket)
