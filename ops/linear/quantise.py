"""Quantises vectors to int8, see `activations`."""

import numpy as np

from ...jit.launch.define import Share, kernel
from ...jit.simd import hmax, hsum_i32, load_f32, set_f32, store, to_i8, vabs, vmax, widen_i32
from .arguments import Quantised

F127 = np.float32(127)
TINY = np.float32(1e-35)  # below this, 127 / top would overflow: such blocks become zeros


@kernel
def quantise_32_kernel(share: Share, x: int, n_rows: int, n_cols: int, out: Quantised):
    """x float32[T, K] -> q int8[T, K], d and s float32[T, K/32]."""
    n = n_cols // 32
    first, last = n_rows * share.part // share.parts, n_rows * (share.part + 1) // share.parts
    for k in range(first * n, last * n):
        a, c = load_f32(x, 128 * k), load_f32(x, 128 * k + 64)
        top = hmax(vmax(vabs(a), vabs(c)))
        scale = top / F127
        inverse = set_f32(F127 / top if top > TINY else np.float32(0))
        qa, qc = to_i8(a * inverse), to_i8(c * inverse)
        store(out.q, 32 * k, qa)
        store(out.q, 32 * k + 16, qc)
        store(out.d, 4 * k, scale)
        store(out.s, 4 * k, scale * np.float32(hsum_i32(widen_i32(qa) + widen_i32(qc))))


@kernel
def quantise_256_kernel(share: Share, x: int, n_rows: int, n_cols: int, out: Quantised):
    """x float32[T, K] -> q int8[T, K], d float32[T, K/256], s int16[T, K/16]."""
    n = n_cols // 256
    first, last = n_rows * share.part // share.parts, n_rows * (share.part + 1) // share.parts
    for k in range(first * n, last * n):
        at = 1024 * k
        top16 = vabs(load_f32(x, at))
        for j in range(64, 1024, 64):
            top16 = vmax(top16, vabs(load_f32(x, at + j)))
        top = hmax(top16)
        store(out.d, 4 * k, top / F127)
        inverse = set_f32(F127 / top if top > TINY else np.float32(0))
        for j in range(16):
            qj = to_i8(load_f32(x, at + j * 64) * inverse)
            store(out.q, 256 * k + j * 16, qj)
            store(out.s, 32 * k + 2 * j, np.int16(hsum_i32(widen_i32(qj))))
