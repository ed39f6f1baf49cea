"""Arguments and traits of the matrix kernels, as numbers that fit into a record.

Imports no Numba.
"""

from typing import NamedTuple

from ...jit.variant import CPU, VARIANT

# Tokens of a group, which a register tile multiplies. Buffers of activations have room for a full
# last group. Zen 4 executes 512 bits as two halves, so 8 vectors of sums keep it busy; with 16,
# LLVM would spill some, and each store of 512 bits takes the time of 1.3 products.
TOKENS = 8 if VARIANT == "avx512" and CPU != "znver4" else 4
RUN = 512  # columns of bytes, or half as many of words: those of 512 tokens stay in L2


class Matrix(NamedTuple):
    """Rows of weights: address of the first, bytes from row to row, number of rows."""

    data: int
    row_bytes: int
    n_rows: int


class Quantised(NamedTuple):
    """Addresses of int8 activations, their scales and their sums, see `activations`."""

    q: int
    d: int
    s: int


class Output(NamedTuple):
    """float32[T, N] to write: its address, bytes from token to token, T."""

    data: int
    row_bytes: int
    n_tokens: int


class Buffers(NamedTuple):
    """Scratch memory of all threads: its address, bytes of each thread."""

    data: int
    n_bytes: int


class FloatMatmulTraits(NamedTuple):
    """Parts of a thread's buffer, for a kernel for plain floats and many tokens."""

    run_bytes: int
    """For a run of weights."""
    token_bytes: int
    """For the sums of each token."""

    def buffer_bytes(self, n_tokens: int) -> int:
        """Bytes of a thread's buffer."""
        return self.run_bytes + n_tokens * self.token_bytes


class GroupLayout(NamedTuple):
    """The activations that a kernel for many tokens reads, and byte offsets in a block of a group.

    A group of TOKENS tokens is, per block of columns:

        x    [TOKENS][block] int8, or int16 for kernels that take words
        d    float32[TOKENS]
        s    sums; blocks of 32: float32[TOKENS]; of 256: int16[TOKENS][256 / grain], for each grain
             of columns that share a scale. For a kernel with a centre (of the weights' codes), sums
             are multiplied by minus that centre, and those of 256 are int32

    in the order [run of columns][group][block], so that all activations of a run are contiguous.
    With one row per token, they would be thousands of bytes apart and compete for a few sets of the
    cache.
    """

    block: int
    words: int
    """1: activations are int16."""
    grain: int
    """Of blocks of 256."""
    centre: int

    @property
    def row(self) -> int:
        """Bytes of one token."""
        return self.block * (2 if self.words else 1)

    @property
    def d(self) -> int:
        """Offset of the scales."""
        return TOKENS * self.row

    @property
    def s(self) -> int:
        """Offset of the sums."""
        return self.d + 4 * TOKENS

    @property
    def s_row(self) -> int:
        """Bytes of the sums of one token."""
        return 4 if self.block == 32 else 256 // self.grain * (4 if self.centre else 2)

    @property
    def n_bytes(self) -> int:
        """Bytes of a block of a group."""
        return self.s + self.s_row * TOKENS

    @property
    def run(self) -> int:
        """Blocks of a run."""
        return RUN // (2 if self.words else 1) // self.block

    def buffer_bytes(self, max_rows: int, n_cols: int) -> int:
        """Bytes of all groups, the last run in full."""
        runs = -(-n_cols // (self.run * self.block))
        return -(-max_rows // TOKENS) * runs * self.run * self.n_bytes


class MatmulTraits(NamedTuple):
    """Traits of a kernel for quantised weights and many tokens."""

    block: int
    words: int
    grain: int
    centre: int
    """The first four are the `GroupLayout` of its activations."""
    run_bytes: int
    """Bytes of a thread's buffer for a run of weights, and rows to be transposed."""
    group_bytes: int
    """Bytes of a thread's buffer for the sums of each group of tokens."""

    @property
    def activations(self) -> GroupLayout:
        """The layout of its activations."""
        return GroupLayout(*self[:4])

    def buffer_bytes(self, n_tokens: int) -> int:
        """Bytes of a thread's buffer."""
        return self.run_bytes + -(-n_tokens // TOKENS) * self.group_bytes
