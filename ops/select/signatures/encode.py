"""Signatures of vectors: the signs of a small network's outputs.

    y = W_n silu(… silu(W_1 x + b_1) …) + b_n,   bit i of the signature = (y_i > 0)

HashAttention's learned encoders have three layers, SimHash one without bias (random hyperplanes).
Weights are stored `[input][output]` and SIMD lanes are outputs, so each output is summed in the
order of the inputs: a signature does not depend on how many vectors were encoded with it.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import load_f32, read, set_f32, store, vexp
from ...attention.layout import SEGMENT
from ..dense import dense, dense_four
from ..stored import read_stored_key
from ..work import MAX_WIDTH
from .arguments import HeadRows, Keys

TOKENS = 16  # that a thread encodes at a time


@jit
def _silu(y, n):
    for i in range(0, n, 16):
        x = load_f32(y, 4 * i)
        store(y, 4 * i, x / (set_f32(1.0) + vexp(set_f32(0.0) - x)))


@intrinsic
def _positive(typingctx, address):
    """Bit i: whether float32 i of the 16 at the address is above 0."""

    def codegen(ctx, b, sig, vals):
        x = read(b, vals[0], v.f32x16.ir)
        hits = b.fcmp_ordered(">", x, v.const(x.type, 0.0))
        return b.zext(b.bitcast(hits, ir.IntType(16)), v.I64)

    return types.uint64(types.intp), codegen


@jit
def signature(x, weights, widths, work):
    """The signature of the vector at address x; work: address of 2 * MAX_WIDTH floats.

    weights: address of all layers, each W [in][out] then b [out]; widths: see `Network`.
    """
    vector, place = x, work
    for layer in range(len(widths) - 1):
        n_in, n_out = widths[layer], widths[layer + 1]
        dense(vector, n_in, weights, weights + 4 * n_in * n_out, n_out, place)
        if layer + 2 < len(widths):
            _silu(place, n_out)
        weights += 4 * (n_in + 1) * n_out
        vector, place = place, work + 4 * MAX_WIDTH * ((layer + 1) % 2)
    return _signs(vector, widths[len(widths) - 1])


@jit
def _signs(y, n):
    """Bit i: whether float32 i of the n at address y is above 0."""
    bits = np.uint64(0)
    for i in range(0, n, 16):
        bits |= _positive(y + 4 * i) << np.uint64(i)
    return bits


@jit
def _encode_key(keys, j, t, item_bytes, x):
    """Write the signature of key t of KV head j to the column; x: address of scratch."""
    encoder = keys.encoder
    read_stored_key(keys.segments, j, t, keys.layout, x)
    bits = signature(x, address(encoder.weights), encoder.widths, x + 4 * MAX_WIDTH)
    to = keys.items[t // SEGMENT] + (j * SEGMENT + t % SEGMENT) * item_bytes
    if item_bytes == 4:
        store(to, 0, np.uint32(bits))
    else:
        store(to, 0, bits)


@kernel
def encode_keys_kernel(
    share: Share, keys: Keys, item_bytes: int, n_kv_heads: int, first: int, stop: int
):
    """Tokens first .. stop-1, or for each KV head the slots that these numbers have in `slots`.

    About 2 * (sum of in * out of all layers) operations a key.
    """
    x, in_slots = address(keys.encoder.works[share.part]), keys.slots.shape[1] > 0
    begin = first + TOKENS * take(share.ticket)
    while begin < stop:
        for t in range(begin, min(begin + TOKENS, stop)):
            for j in range(n_kv_heads):
                slot = np.int64(keys.slots[j, t]) if in_slots else t
                _encode_key(keys, j, slot, item_bytes, x)
        begin = first + TOKENS * take(share.ticket)


@jit
def _four_signatures(x, t, head, encoder, work, out):
    """`signature` of a query head of rows t .. t+3 of x; work: address of 8 * MAX_WIDTH floats."""
    weights, widths = address(encoder.weights), encoder.widths
    vector, place, line = address(x[t, head]), work, 4 * MAX_WIDTH
    stride = 4 * x.shape[1] * x.shape[2]
    for layer in range(len(widths) - 1):
        n_in, n_out = widths[layer], widths[layer + 1]
        bias = weights + 4 * n_in * n_out
        dense_four(vector, stride, n_in, weights, bias, n_out, place, line)
        if layer + 2 < len(widths):
            for r in range(4):
                _silu(place + r * line, n_out)
        weights += 4 * (n_in + 1) * n_out
        vector, stride, place = place, line, work + 4 * line * ((layer + 1) % 2)
    for r in range(4):
        out[t + r, head] = _signs(vector + r * line, widths[len(widths) - 1])


@kernel
def encode_heads_kernel(share: Share, rows: HeadRows, first: int, n_heads: int):
    """The signatures of query heads first .. first+n_heads-1 of each row, four rows at a time."""
    x, out, encoder = rows.x, rows.out, rows.encoder
    weights, work = address(encoder.weights), address(encoder.works[share.part])
    n = x.shape[0]
    blocks = (n + 3) // 4
    item = take(share.ticket)
    while item < blocks * n_heads:
        head, t = first + item // blocks, item % blocks * 4
        if t + 4 <= n:
            _four_signatures(x, t, head, encoder, work, out)
        else:
            for r in range(t, n):
                out[r, head] = signature(address(x[r, head]), weights, encoder.widths, work)
        item = take(share.ticket)
