"""Kernels that quantise vectors to int8, and that arrange them in groups, see `activations`."""

from typing import Any

import numpy as np

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import (
    Vec,
    emits,
    hmax,
    hsum_i32,
    i16x8,
    i16x16,
    i32x16,
    load_f32,
    load_i8x32,
    load_i16x16,
    load_one_f32,
    set_f32,
    set_i32,
    shuffle,
    store,
    to_i8,
    vabs,
    vmax,
    widen_i16,
    widen_i32,
)
from .arguments import TOKENS, GroupLayout, Quantised

F127 = np.float32(127)
TINY = np.float32(1e-35)  # below this, 127 / top would overflow: such blocks become zeros

_sums_of_two = emits(i16x8, i16x16)(
    lambda b, v: b.add(shuffle(b, v, range(0, 16, 2)), shuffle(b, v, range(1, 16, 2)))
)
_even_lanes = emits(Vec("i32", 8), i32x16)(lambda b, v: shuffle(b, v, range(0, 16, 2)))
_odd_lanes = emits(Vec("i32", 8), i32x16)(lambda b, v: shuffle(b, v, range(1, 16, 2)))


@kernel
def quantise_32_kernel(share: Share, x: int, n_rows: int, n_cols: int, out: Quantised):
    """x float32[T, K] -> q int8[T, K], d and s float32[T, K/32]."""
    n = n_cols // 32
    first, stop = bounds(share, n_rows)
    for k in range(first * n, stop * n):
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
    first, stop = bounds(share, n_rows)
    for k in range(first * n, stop * n):
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


def make_put_token(layout: GroupLayout) -> Any:
    """The jitted function that puts block number `block` of x at place t of a group's block."""
    columns, words, row_bytes, centre = layout.block, layout.words, layout.row, layout.centre
    d_at, s_at, s_row = layout.d, layout.s, layout.s_row
    factor = np.float32(-centre if centre else 1)

    @jit
    def _put_token(x, block, to, t):
        for k in range(0, columns, 32):
            codes = load_i8x32(x.q, block * columns + k)
            if words:
                store(to, t * row_bytes + 2 * k, widen_i16(codes))
            else:
                store(to, t * row_bytes + k, codes)
        store(to, d_at + 4 * t, load_one_f32(x.d, 4 * block))
        if columns == 32:
            store(to, s_at + 4 * t, load_one_f32(x.s, 4 * block) * factor)
        elif centre:
            wide = widen_i32(load_i16x16(x.s, 32 * block)) * set_i32(-centre)
            if s_row == 64:
                store(to, s_at + 64 * t, wide)
            else:
                store(to, s_at + 32 * t, _even_lanes(wide) + _odd_lanes(wide))
        elif s_row == 32:
            store(to, s_at + 32 * t, load_i16x16(x.s, 32 * block))
        else:
            store(to, s_at + 16 * t, _sums_of_two(load_i16x16(x.s, 32 * block)))

    return _put_token


def make_group(layout: GroupLayout) -> DefinedKernel:
    """The kernel that copies rows of quantised activations into groups of one layout."""
    n_bytes, run, put_token = layout.n_bytes, layout.run, make_put_token(layout)

    @kernel
    def group_kernel(share: Share, x: Quantised, n_tokens: int, n_blocks: int, out: int):
        """Rows of n_blocks blocks of each token -> groups at address `out`.

        Reads up to TOKENS - 1 rows after the last.
        """
        groups = (n_tokens + TOKENS - 1) // TOKENS
        first, stop = bounds(share, groups)
        for group in range(first, stop):
            for i in range(n_blocks):
                to = out + ((i // run * groups + group) * run + i % run) * n_bytes
                for t in range(TOKENS):
                    put_token(x, (group * TOKENS + t) * n_blocks + i, to, t)

    return group_kernel
