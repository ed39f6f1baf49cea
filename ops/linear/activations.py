"""The inputs of a group of matrices that read the same vector: quantised once for all of them.

    x = d * q,  d = max |x| / 127 over the block,  q = round(x / d)

Blocks of 32 meet the formats with a float scale per 32 weights; blocks of 256 those whose inner
scales are integers, so that a whole block is summed in integers. Beside them stand the sums that
undo offsets and minima: d * sum(q) per 32 as float32, sum(q) per 16 as int16. Imports no Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...jit.arena import aligned
from ...jit.launch import kernel, kernels
from ..errors import OpsError
from .groups import TOKENS, GroupLayout

_FLOAT = np.dtype(np.float32)
_QUANTISE = {n: kernel(f"{__package__}.quantise", f"quantise_{n}") for n in (32, 256)}
_group_kernel = kernels(f"{__package__}.grouped", "group_kernel")


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
        self._quantise = _QUANTISE[block]
        self._groups: dict[GroupLayout, npt.NDArray[np.uint8]] = {}

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Quantise the rows of x."""
        self._quantise(x.ctypes.data, *x.shape, *self.addresses, parallel=len(x) > 1)

    def group(self, where: GroupLayout, n_tokens: int) -> int:
        """The first rows side by side in groups; the address."""
        rows, n_cols = self.q.shape
        groups = self._groups.get(where)
        if groups is None:
            groups = self._groups[where] = aligned(where.buffer_bytes(rows, n_cols), np.uint8)
        address = int(groups.ctypes.data)
        _group_kernel(where)(*self.addresses, n_tokens, n_cols // where.block, address)
        return address


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
        self._done: dict[int, Blocks] = {}
        self._groups: dict[GroupLayout, int] = {}
        self._scratch = np.zeros((0, 0), np.uint8)
        self._scratch_address = 0
        self._counter = aligned(8, np.int64)  # a cache line for the threads' next part
        self.counter = int(self._counter.ctypes.data)

    def set(self, x: npt.NDArray[np.float32]) -> Activations:
        """Take x float32[T, K], T <= max_rows; x must stay as it is until the next `set`.

        Raises OpsError for another type, shape or order of elements.
        """
        shape = x.shape
        if len(shape) != 2 or shape[1] != self.n_cols or not 1 <= shape[0] <= self.max_rows:
            raise OpsError(
                f"setting activations: found an array of shape {shape}, expected (T, "
                f"{self.n_cols}) with 1 <= T <= {self.max_rows}"
            )
        if x.dtype != _FLOAT or not x.flags.c_contiguous:
            raise OpsError(
                f"setting activations: found {x.dtype}"
                f"{'' if x.flags.c_contiguous else ' with gaps or in another order'},"
                " expected contiguous float32"
            )
        self.x = x
        self._done.clear()
        self._groups.clear()
        return self

    def blocks(self, block: int) -> Blocks:
        """The vectors quantised in blocks of 32 or 256."""
        done = self._done.get(block)
        if done is not None:
            return done
        blocks = self._blocks.get(block)
        if blocks is None:
            blocks = self._blocks[block] = Blocks(block, self.max_rows, self.n_cols)
        blocks.fill(self.x)
        self._done[block] = blocks
        return blocks

    def quantised(self, block: int) -> tuple[int, ...]:
        """Addresses of q, d and s (see `Blocks`) for blocks of 32 or 256."""
        return self.blocks(block).addresses

    def grouped(self, where: GroupLayout) -> int:
        """Address of the vectors quantised and in groups (see `grouped`)."""
        if where not in self._groups:
            self._groups[where] = self.blocks(where.block).group(where, len(self.x))
        return self._groups[where]

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
