"""The inputs of a group of matrices that read the same vector: quantised once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpsError
from ..simd import aligned
from ..threads import n_threads
from .quantise import quantise_many_32, quantise_many_256, quantise_one_32, quantise_one_256, widen

# Kernels take tokens four at a time, and read (but never write) the rows that fill up the last
# four: the integer buffers have them.
TOKENS = 4

_QUANTISE = {32: (quantise_one_32, quantise_many_32), 256: (quantise_one_256, quantise_many_256)}


class Blocks:
    """int8 activations with a scale per block of 32 or 256, and what stands beside them.

    q int8[T, K]; d float32[T, K / block]; s: per 32 d * sum(q) as float32, for blocks of 256 per 16
    sum(q) as int16.
    """

    def __init__(self, block: int, max_rows: int, n_cols: int) -> None:
        rows = -(-max_rows // TOKENS) * TOKENS
        per_sum, sum_type = (32, np.float32) if block == 32 else (16, np.int16)
        self.q = _zeros(rows, n_cols, np.int8)
        self.d = _zeros(rows, n_cols // block, np.float32)
        self.s = _zeros(rows, n_cols // per_sum, sum_type)
        self.addresses = tuple(a.ctypes.data for a in (self.q, self.d, self.s))
        self.one, self.many = _QUANTISE[block]
        self.words: npt.NDArray[np.int16] | None = None

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Quantise the rows of x."""
        if len(x) == 1:
            self.one(x, self.q, self.d, self.s)
        else:
            self.many(x, self.q, self.d, self.s, n_threads())

    def widen(self, n_tokens: int) -> int:
        """q once more as int16[T, K], for kernels that take words; its address."""
        if self.words is None:
            self.words = _zeros(self.q.shape[0], self.q.shape[1], np.int16)
        widen(self.q, self.words, n_tokens, n_threads())
        return int(self.words.ctypes.data)


def _zeros(rows: int, cols: int, dtype: Any) -> npt.NDArray[Any]:
    out = aligned(rows * cols, dtype).reshape(rows, cols)
    out.fill(0)
    return out


class Activations:
    """Up to `max_rows` vectors of `n_cols` numbers, for any number of `linear` calls.

    `set` only remembers the vectors; the first matrix that needs them as integers has them
    quantised, the next ones find them done. Buffers are made once and reused.
    """

    def __init__(self, max_rows: int, n_cols: int) -> None:
        if max_rows < 1 or n_cols < 1:
            raise OpsError(
                f"making activations: found {max_rows} rows of {n_cols}, expected at least 1 of 1"
            )
        self.max_rows, self.n_cols = max_rows, n_cols
        self.x: npt.NDArray[np.float32] = np.zeros((0, n_cols), np.float32)
        self._blocks: dict[int, Blocks] = {}
        self._done: set[int] = set()
        self._words: dict[int, int] = {}
        self._scratch = np.zeros((0, 0), np.uint8)
        self._scratch_address = 0

    def set(self, x: npt.NDArray[np.float32]) -> Activations:
        """Take x float32[T, K], T <= max_rows; x must stay as it is until the next `set`.

        Raises OpsError for another type, shape or order of elements.
        """
        if x.ndim != 2 or x.shape[1] != self.n_cols or not 1 <= x.shape[0] <= self.max_rows:
            raise OpsError(
                f"setting activations: found an array of shape {x.shape}, expected (T, "
                f"{self.n_cols}) with 1 <= T <= {self.max_rows}"
            )
        if x.dtype != np.float32 or not x.flags.c_contiguous:
            raise OpsError(
                f"setting activations: found {x.dtype}"
                f"{'' if x.flags.c_contiguous else ' with gaps or in another order'},"
                " expected contiguous float32"
            )
        self.x = x
        self._done.clear()
        self._words.clear()
        return self

    def quantised(self, block: int) -> tuple[int, ...]:
        """Addresses of q, d and s (see `Blocks`) for blocks of 32 or 256."""
        blocks = self._blocks.get(block)
        if blocks is None:
            blocks = self._blocks[block] = Blocks(block, self.max_rows, self.n_cols)
        if block not in self._done:
            blocks.fill(self.x)
            self._done.add(block)
        return blocks.addresses

    def as_words(self, block: int) -> tuple[int, ...]:
        """As `quantised`, with q as int16."""
        _, d, s = self.quantised(block)
        if block not in self._words:
            self._words[block] = self._blocks[block].widen(len(self.x))
        return self._words[block], d, s

    def scratch(self, threads: int, n_bytes: int) -> tuple[int, int]:
        """Address of buffers for the threads to work in, and the bytes from one to the next.

        Kept, and made anew only to grow.
        """
        if self._scratch.shape[0] < threads or self._scratch.shape[1] < n_bytes:
            # An odd number of cache lines: the threads' buffers fall on different cache sets.
            n_bytes = -(-n_bytes // 128) * 128 + 64
            self._scratch = aligned(threads * n_bytes, np.uint8).reshape(threads, n_bytes)
            self._scratch_address = self._scratch.ctypes.data
        return self._scratch_address, self._scratch.shape[1]
