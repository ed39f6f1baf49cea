"""Activations as integers: int8 with a float scale per block of 32 or of 256.

    x = d * q,  d = max |x| / 127 over the block,  q = round(x / d)

Blocks of 32 meet the formats with a float scale per 32 weights; blocks of 256 those whose inner
scales are integers, so that a whole block is summed in integers. Beside them stand the sums that
undo offsets and minima: d * sum(q) per 32 as float32, sum(q) per 16 as int16.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..cache import jit
from ..simd import (
    hmax,
    hsum_i32,
    load_f32,
    set_f32,
    store,
    to_i8,
    vabs,
    vmax,
    widen_i32,
)

F127 = np.float32(127)
TINY = np.float32(1e-35)  # below, 127 / top would overflow: such blocks become zeros


@jit
def _one_row_32(x, i, q, d, s):
    """Row i of x, in blocks of 32."""
    n_cols = x.shape[1]
    for k in range(n_cols // 32):
        at = (i * n_cols + k * 32) * 4
        a, c = load_f32(x, at), load_f32(x, at + 64)
        top = hmax(vmax(vabs(a), vabs(c)))
        scale = top / F127
        inverse = set_f32(F127 / top if top > TINY else np.float32(0))
        qa, qc = to_i8(a * inverse), to_i8(c * inverse)
        store(q, i * n_cols + k * 32, qa)
        store(q, i * n_cols + k * 32 + 16, qc)
        d[i, k] = scale
        s[i, k] = scale * np.float32(hsum_i32(widen_i32(qa) + widen_i32(qc)))


@jit
def _one_row_256(x, i, q, d, s):
    """Row i of x, in blocks of 256."""
    n_cols = x.shape[1]
    for k in range(n_cols // 256):
        at = (i * n_cols + k * 256) * 4
        top16 = vabs(load_f32(x, at))
        for j in range(64, 1024, 64):
            top16 = vmax(top16, vabs(load_f32(x, at + j)))
        top = hmax(top16)
        d[i, k] = top / F127
        inverse = set_f32(F127 / top if top > TINY else np.float32(0))
        for j in range(16):
            qj = to_i8(load_f32(x, at + j * 64) * inverse)
            store(q, i * n_cols + k * 256 + j * 16, qj)
            s[i, k * 16 + j] = hsum_i32(widen_i32(qj))


@jit
def quantise_one_32(x, q, d, s):
    """One token: x float32[1, K] -> q int8[1, K], d and s float32[1, K/32]."""
    _one_row_32(x, 0, q, d, s)


@jit
def quantise_one_256(x, q, d, s):
    """One token: x float32[1, K] -> q int8[1, K], d float32[1, K/256], s int16[1, K/16]."""
    _one_row_256(x, 0, q, d, s)


@jit(parallel=True)
def quantise_many_32(x, q, d, s, threads):
    """Tokens split over threads; arguments as `quantise_one_32` with T rows."""
    for th in prange(threads):
        for i in range(len(x) * th // threads, len(x) * (th + 1) // threads):
            _one_row_32(x, i, q, d, s)


@jit(parallel=True)
def quantise_many_256(x, q, d, s, threads):
    """Tokens split over threads; arguments as `quantise_one_256` with T rows."""
    for th in prange(threads):
        for i in range(len(x) * th // threads, len(x) * (th + 1) // threads):
            _one_row_256(x, i, q, d, s)


@jit(parallel=True)
def widen(q, words, n_tokens, threads):
    """The first rows of q int8[T, K] as int16[T, K]."""
    for th in prange(threads):
        for i in range(n_tokens * th // threads, n_tokens * (th + 1) // threads):
            for k in range(q.shape[1]):
                words[i, k] = q[i, k]
