"""What is computed of stored keys: their sketches (see `scan`), and sums for their mean."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention.layout import BLOCK, SEGMENT
from ..dense import dense
from ..stored import read_stored_key
from .arguments import Keys, KeySums

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
def _put_in_frame(x, frame, j, n):
    """x = (x - centre) scales, n floats at an address; frame: `Frame`."""
    centre, scales = address(frame.centre[j]), address(frame.scales[j])
    for i in range(0, 4 * n, 64):
        v.store(x, i, (v.load_f32(x, i) - v.load_f32(centre, i)) * v.load_f32(scales, i))


@jit
def _sketch_key(keys, j, t, padded, x):
    """Write the sketch of key t of KV head j in its frame; x: address of scratch."""
    segment, item = t // SEGMENT, j * SEGMENT + t % SEGMENT
    read_stored_key(keys.segments, j, t, keys.layout, x)
    sketches = keys.sketches
    _put_in_frame(x, sketches.frame, j, padded)
    bits, factor = sketches.bits[segment] + item * padded // 8, sketches.factors[segment] + 2 * item
    put_sketch(x, padded, address(sketches.rotation.weights), bits, factor, x + 4 * padded)


@kernel
def sketch_keys_kernel(
    share: Share, keys: Keys, n_kv_heads: int, padded: int, first: int, stop: int
):
    """Tokens first .. stop-1, or for each KV head the slots that these numbers have in `slots`.

    About 2 padded^2 operations a key.
    """
    x, in_slots = address(of_thread(keys.works, share.part)), keys.slots.shape[1] > 0
    begin = first + TOKENS * take(share.ticket)
    while begin < stop:
        for t in range(begin, min(begin + TOKENS, stop)):
            for j in range(n_kv_heads):
                slot = np.int64(keys.slots[j, t]) if in_slots else t
                _sketch_key(keys, j, slot, padded, x)
        begin = first + TOKENS * take(share.ticket)


@jit
def add_row(total, row, n):
    """total += row, n floats at addresses."""
    for i in range(0, 4 * n, 64):
        v.store(total, i, v.load_f32(total, i) + v.load_f32(row, i))


@jit
def _add_squares(total, row, n):
    """total += row ** 2, n floats at addresses."""
    for i in range(0, 4 * n, 64):
        x = v.load_f32(row, i)
        v.store(total, i, v.fma(x, x, v.load_f32(total, i)))


@kernel
def key_sums_kernel(share: Share, keys: KeySums, n_kv_heads: int, first: int, stop: int):
    """Sums of the keys of tokens first .. stop-1 and of their squares, segment by segment; reads
    their K rows."""
    x, oldest = address(keys.works[share.part]), first // SEGMENT
    item = take(share.ticket)
    while item < ((stop - 1) // SEGMENT - oldest + 1) * n_kv_heads:
        number, j = item // n_kv_heads, item % n_kv_heads
        begin = (oldest + number) * SEGMENT
        for t in range(max(first, begin), min(stop, begin + SEGMENT)):
            read_stored_key(keys.segments, j, t, keys.layout, x)
            add_row(address(keys.sums[number, j]), x, BLOCK * keys.layout.blocks)
            _add_squares(address(keys.squares[number, j]), x, BLOCK * keys.layout.blocks)
        item = take(share.ticket)
