"""Quantised activations of four tokens side by side, as the kernel of many tokens reads them.

A group of TOKENS tokens is, per block of columns:

    x    [TOKENS][block] int8, or int16 for kernels that take words
    d    float32[TOKENS]
    s    blocks of 32: float32[TOKENS]; of 256: int16[TOKENS][16]   (see `activations.Blocks`)

in the order [run of columns][group][block]: what a run of columns of the matrix meets is read
from begin to end. In rows of tokens it would lie thousands of bytes apart, in few sets of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..simd import load_i8x32, load_i16x16, load_one_f32, store, widen_i16
from ..steps import Step, step

TOKENS = 4  # of a group; buffers of rows have room for the last one to be read whole
RUN = 512  # columns of bytes, or half as many of words: of 512 tokens, what stays in L2


@dataclass(frozen=True)
class GroupLayout:
    """Byte offsets inside one block of a group."""

    block: int
    words: bool

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
    def n_bytes(self) -> int:
        return self.s + (4 if self.block == 32 else 32) * TOKENS

    @property
    def run(self) -> int:
        """Blocks of a run."""
        return RUN // (2 if self.words else 1) // self.block

    def buffer_bytes(self, max_rows: int, n_cols: int) -> int:
        """Bytes of all groups, the last run in full."""
        runs = -(-n_cols // (self.run * self.block))
        return -(-max_rows // TOKENS) * runs * self.run * self.n_bytes


@cache
def group_kernel(where: GroupLayout) -> Step:
    """Rows to groups: addresses of q, d and s (`activations.Blocks`), T, blocks per row; address of
    the groups. Reads up to TOKENS - 1 rows after the last."""
    block, words, row_bytes = where.block, where.words, where.row
    d_at, s_at, n_bytes, run = where.d, where.s, where.n_bytes, where.run

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
                        store(to, s_at + 4 * t, load_one_f32(s, 4 * at))
                    else:
                        store(to, s_at + 32 * t, load_i16x16(s, 32 * at))

    return _group
