"""Quantised activations of four tokens side by side, as the kernel of many tokens reads them.

A group of TOKENS tokens is, per block of columns:

    x    [TOKENS][block] int8, or int16 for kernels that take words
    d    float32[TOKENS]
    s    blocks of 32: float32[TOKENS], times minus the centre of the weights' codes if they have
         one; of 256: int16[TOKENS][256 / grain], for each grain of columns that share a scale

in the order [run of columns][group][block]: what a run of columns of the matrix meets is read
from begin to end. In rows of tokens it would lie thousands of bytes apart, in few sets of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..simd import (
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
from ..steps import Step, step

TOKENS = 4  # of a group; buffers of rows have room for the last one to be read whole
RUN = 512  # columns of bytes, or half as many of words: of 512 tokens, what stays in L2


@dataclass(frozen=True)
class GroupLayout:
    """Byte offsets inside one block of a group."""

    block: int
    words: bool
    grain: int  # of blocks of 256
    centre: int  # of blocks of 32

    @property
    def row(self) -> int:
        """Bytes of one token."""
        return self.block * (2 if self.words else 1)

    @property
    def d(self) -> int:
        return TOKENS * self.row

    @property
    def s(self) -> int:
        return self.d + 4 * TOKENS

    @property
    def s_row(self) -> int:
        """Bytes of the sums of one token."""
        return 4 if self.block == 32 else 256 // self.grain * 2

    @property
    def n_bytes(self) -> int:
        return self.s + self.s_row * TOKENS

    @property
    def run(self) -> int:
        """Blocks of a run."""
        return RUN // (2 if self.words else 1) // self.block

    def buffer_bytes(self, max_rows: int, n_cols: int) -> int:
        """Bytes of all groups, the last run in full."""
        runs = -(-n_cols // (self.run * self.block))
        return -(-max_rows // TOKENS) * runs * self.run * self.n_bytes


_sums_of_two = emits(i16x8, i16x16)(
    lambda b, v: b.add(shuffle(b, v, range(0, 16, 2)), shuffle(b, v, range(1, 16, 2)))
)


@cache
def group_kernel(where: GroupLayout) -> Step:
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
