"""Quantised activations of a few tokens side by side, as prefill reads them.

A group of TOKENS tokens is, per block of columns:

    x    [TOKENS][block] int8, or int16 for kernels that take words
    d    float32[TOKENS]
    s    sums; blocks of 32: float32[TOKENS]; of 256: int16[TOKENS][256 / grain], for each grain of
         columns that share a scale. For a kernel with a centre (of the weights' codes) times minus
         that centre, those of 256 as int32

in the order [run of columns][group][block], so that all activations of a run are contiguous. In
one row per token they would be thousands of bytes apart and compete for a few sets of the cache.
Imports no Numba.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...jit.variant import CPU, VARIANT

# Of a group, which is what a register tile multiplies. Buffers of activations have room for a last
# group that is full. Zen 4 executes 512 bits as two halves, so 8 vectors of sums keep it busy; with
# 16 some would be spilled, and each store of 512 bits takes the time of 1.3 products.
TOKENS = 8 if VARIANT == "avx512" and CPU != "znver4" else 4
RUN = 512  # columns of bytes, or half as many of words: those of 512 tokens stay in L2


@dataclass(frozen=True)
class GroupLayout:
    """Byte offsets inside one block of a group."""

    block: int
    words: bool
    grain: int  # of blocks of 256
    centre: int

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
        return 4 if self.block == 32 else 256 // self.grain * (4 if self.centre else 2)

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
