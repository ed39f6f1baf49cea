"""Arranges rows of quantised activations in `groups`."""

import numpy as np

from ...jit.launch import DefinedKernel
from ...jit.launch.define import Share, kernel
from ...jit.simd import (
    Vec,
    emits,
    i16x8,
    i16x16,
    i32x16,
    load_i8x32,
    load_i16x16,
    load_one_f32,
    set_i32,
    shuffle,
    store,
    widen_i16,
    widen_i32,
)
from .arguments import Quantised
from .groups import TOKENS, GroupLayout

_sums_of_two = emits(i16x8, i16x16)(
    lambda b, v: b.add(shuffle(b, v, range(0, 16, 2)), shuffle(b, v, range(1, 16, 2)))
)
_even_lanes = emits(Vec("i32", 8), i32x16)(lambda b, v: shuffle(b, v, range(0, 16, 2)))
_odd_lanes = emits(Vec("i32", 8), i32x16)(lambda b, v: shuffle(b, v, range(1, 16, 2)))


def make_group(layout: GroupLayout) -> DefinedKernel:
    """The kernel that copies rows of quantised activations into groups of one layout."""
    block, words, row_bytes, centre = layout.block, layout.words, layout.row, layout.centre
    d_at, s_at, s_row, n_bytes, run = layout.d, layout.s, layout.s_row, layout.n_bytes, layout.run
    factor = np.float32(-centre if centre else 1)

    @kernel
    def group_kernel(share: Share, x: Quantised, n_tokens: int, n_blocks: int, out: int):
        """Rows of n_blocks blocks of each token -> groups at address `out`.

        Reads up to TOKENS - 1 rows after the last.
        """
        groups = (n_tokens + TOKENS - 1) // TOKENS
        for group in range(
            groups * share.part // share.parts, groups * (share.part + 1) // share.parts
        ):
            for i in range(n_blocks):
                to = out + ((i // run * groups + group) * run + i % run) * n_bytes
                for t in range(TOKENS):
                    at = (group * TOKENS + t) * n_blocks + i
                    for k in range(0, block, 32):
                        codes = load_i8x32(x.q, at * block + k)
                        if words:
                            store(to, t * row_bytes + 2 * k, widen_i16(codes))
                        else:
                            store(to, t * row_bytes + k, codes)
                    store(to, d_at + 4 * t, load_one_f32(x.d, 4 * at))
                    if block == 32:
                        store(to, s_at + 4 * t, load_one_f32(x.s, 4 * at) * factor)
                    elif centre:
                        wide = widen_i32(load_i16x16(x.s, 32 * at)) * set_i32(-centre)
                        if s_row == 64:
                            store(to, s_at + 64 * t, wide)
                        else:
                            store(to, s_at + 32 * t, _even_lanes(wide) + _odd_lanes(wide))
                    elif s_row == 32:
                        store(to, s_at + 32 * t, load_i16x16(x.s, 32 * at))
                    else:
                        store(to, s_at + 16 * t, _sums_of_two(load_i16x16(x.s, 32 * at)))

    return group_kernel
