"""Arguments and traits of the matrix kernels, as numbers that fit into a record.

Imports no Numba.
"""

from typing import NamedTuple

from .groups import TOKENS


class Matrix(NamedTuple):
    """Rows of weights: address of the first, bytes from row to row, number of rows."""

    data: int
    row_bytes: int
    n_rows: int


class Quantised(NamedTuple):
    """Addresses of int8 activations, of their scales and of their sums, see `activations`."""

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
    """Of a kernel for plain floats and many tokens: bytes that it needs of a thread's buffer."""

    run_bytes: int
    """For a run of weights."""
    token_bytes: int
    """For the sums of each token."""

    def buffer_bytes(self, n_tokens: int) -> int:
        """Bytes of a thread's buffer."""
        return self.run_bytes + n_tokens * self.token_bytes


class MatmulTraits(NamedTuple):
    """Of a kernel for quantised weights and many tokens."""

    block: int
    words: int
    grain: int
    centre: int
    """Up to here: how it reads activations, see `GroupLayout`."""
    run_bytes: int
    """Of a thread's buffer: for a run of weights, and rows to be transposed."""
    group_bytes: int
    """Of a thread's buffer: for the sums of each group of tokens."""

    def buffer_bytes(self, n_tokens: int) -> int:
        """Bytes of a thread's buffer."""
        return self.run_bytes + -(-n_tokens // TOKENS) * self.group_bytes
