"""Sketches of stored keys: bits of the rotated key and one factor (see `scan`)."""

import numpy as np
from numba import prange

from ... import simd as v
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from ...cache import jit
from ..dense import dense


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


@jit
def _sketch_tokens(segments, facts, bits, factors, n_kv_heads, rotation, padded, work, first, last):
    for t in range(first, last):
        segment, place = t // SEGMENT, t % SEGMENT
        for j in range(n_kv_heads):
            tile = segments[segment] + j * facts[5] + place // TILE * facts[4]
            work[:padded] = 0.0
            x = np.int64(work.ctypes.data)
            read_key(tile, place % TILE, facts, x)
            item = j * SEGMENT + place
            put_sketch(
                x, padded, np.int64(rotation.ctypes.data), bits[segment] + item * padded // 8,
                factors[segment] + 2 * item, x + 4 * padded,
            )  # fmt: skip


@jit(parallel=True)
def sketch_keys_kernel(
    segments, facts, bits, factors, n_kv_heads, rotation, padded, works, first, last
):
    """works float32[threads, 2 * padded]; about 2 padded^2 operations a key."""
    parts = works.shape[0]
    if parts == 1:
        _sketch_tokens(
            segments, facts, bits, factors, n_kv_heads, rotation, padded, works[0], first, last
        )
    else:
        n = last - first
        for part in prange(parts):
            _sketch_tokens(
                segments, facts, bits, factors, n_kv_heads, rotation, padded, works[part],
                first + n * part // parts, first + n * (part + 1) // parts,
            )  # fmt: skip
