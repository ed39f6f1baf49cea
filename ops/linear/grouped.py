"""Rows of quantised activations to `groups`."""

from __future__ import annotations

import numpy as np

from ...jit.launch import Kernel
from ...jit.launch.legacy_define import step
from ...jit.simd import (
    emits,
    i16x8,
    i16x16,
    load_i8x32,
    load_i16x16,
    load_one_f32,
    shuffle,
    store,
    widen_i16,
)
from .groups import TOKENS, GroupLayout

_sums_of_two = emits(i16x8, i16x16)(
    lambda b, v: b.add(shuffle(b, v, range(0, 16, 2)), shuffle(b, v, range(1, 16, 2)))
)


def group_kernel(where: GroupLayout) -> Kernel:
    """Rows to groups: addresses of q, d and s (`activations.Blocks`), T, blocks per row; address of
    the groups. Reads up to TOKENS - 1 rows after the last."""
    block, words, row_bytes = where.block, where.words, where.row
    d_at, s_at, s_row, n_bytes, run = where.d, where.s, where.s_row, where.n_bytes, where.run
    factor = np.float32(-where.centre if where.centre else 1)

    @step("iiiiii")
    def _group(part, parts, ticket, q, d, s, n_tokens, n_blocks, out):
        groups = (n_tokens + TOKENS - 1) // TOKENS
        for group in range(groups * part // parts, groups * (part + 1) // parts):
            for i in range(n_blocks):
                to = out + ((i // run * groups + group) * run + i % run) * n_bytes
                for t in range(TOKENS):
                    at = (group * TOKENS + t) * n_blocks + i
                    for k in range(0, block, 32):
                        codes = load_i8x32(q, at * block + k)
                        if words:
                            store(to, t * row_bytes + 2 * k, widen_i16(codes))
                        else:
                            store(to, t * row_bytes + k, codes)
                    store(to, d_at + 4 * t, load_one_f32(d, 4 * at))
                    if block == 32:
                        store(to, s_at + 4 * t, load_one_f32(s, 4 * at) * factor)
                    elif s_row == 32:
                        store(to, s_at + 32 * t, load_i16x16(s, 32 * at))
                    else:
                        store(to, s_at + 16 * t, _sums_of_two(load_i16x16(s, 32 * at)))

    return _group
