"""The inputs of matrices that read the same vectors, quantised once for all of them.

    x = d * q,  d = max |x| / 127 over the block,  q = round(x / d)

Formats with a float scale per 32 weights need blocks of 32. Formats whose inner scales are integers
need blocks of 256: they sum a whole block in integers. Offsets and minima are multiplied by sums of
activations: d * sum(q) per 32 as float32, sum(q) per 16 as int16. Imports no Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...jit.arena import aligned
from ...jit.launch import DefinedKernel, lazy_kernels
from ..errors import OpsError
from .arguments import TOKENS, Buffers, GroupLayout, Quantised

_FLOAT = np.dtype(np.float32)


@lazy_kernels
def _quantise(block: int) -> DefinedKernel:
    from .quantise import quantise_32_kernel, quantise_256_kernel

    return quantise_32_kernel if block == 32 else quantise_256_kernel


@lazy_kernels
def _group(layout: GroupLayout) -> DefinedKernel:
    from .quantise import make_group

    return make_group(layout)


class QuantisedVectors:
    """int8 activations with a scale per block of 32 or 256, and their sums.

    q int8[T, K]; d float32[T, K / block]; s float32[T, K / 32] d * sum(q), or for blocks of 256
    int16[T, K / 16] sum(q).
    """

    def __init__(self, block: int, max_rows: int, n_cols: int) -> None:
        rows = -(-max_rows // TOKENS) * TOKENS
        per_sum, sum_type = (32, np.float32) if block == 32 else (16, np.int16)
        self.q = _zeros((rows, n_cols), np.int8)
        self.d = _zeros((rows, n_cols // block), np.float32)
        self.s = _zeros((rows, n_cols // per_sum), sum_type)
        self.addresses = Quantised(*(a.ctypes.data for a in (self.q, self.d, self.s)))
        self._quantise = _quantise(block)
        self._groups: dict[GroupLayout, npt.NDArray[np.uint8]] = {}

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Quantise the rows of x."""
        self._quantise(x.ctypes.data, *x.shape, *self.addresses, parallel=len(x) > 1)

    def group(self, layout: GroupLayout, n_tokens: int) -> int:
        """Arrange the first rows in groups (`GroupLayout`). Returns their address."""
        rows, n_cols = self.q.shape
        groups = self._groups.get(layout)
        if groups is None:
            groups = self._groups[layout] = aligned(layout.buffer_bytes(rows, n_cols), np.uint8)
        address = int(groups.ctypes.data)
        _group(layout)(*self.addresses, n_tokens, n_cols // layout.block, address)
        return address


def _zeros(shape: tuple[int, int], dtype: Any) -> npt.NDArray[Any]:
    out: npt.NDArray[Any] = aligned(shape, dtype)
    out.fill(0)
    return out


class Activations:
    """Up to `max_rows` vectors of `n_cols` numbers, for any number of `linear` calls.

    `set` only refers to the vectors. The first matrix that needs them quantised quantises them, and
    later ones use the result. Buffers are allocated once and reused.

    alone: give each vector the bits that it has alone, in products with several ones, too.
    """

    def __init__(self, max_rows: int, n_cols: int, *, alone: bool = False) -> None:
        if max_rows < 1 or n_cols < 1:
            raise OpsError(
                f"making activations: found {max_rows} rows of {n_cols}, expected at least 1 of 1"
            )
        self.max_rows, self.n_cols, self.alone = max_rows, n_cols, alone
        self.x: npt.NDArray[np.float32] = np.zeros((0, n_cols), np.float32)
        self._buffers: dict[int, QuantisedVectors] = {}
        self._filled: set[int] = set()  # blocks whose buffers hold the present vectors
        self._groups: dict[GroupLayout, int] = {}
        self._scratch = np.zeros((0, 0), np.uint8)
        self._scratch_address = 0
        self.group = id(self)
        """The group of launches that read these vectors, see `Kernel.__call__`."""

    def set(self, x: npt.NDArray[np.float32]) -> Activations:
        """Use x float32[T, K], T <= max_rows; x must not change until the next `set`.

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
        self._filled.clear()
        self._groups.clear()
        return self

    def quantised(self, block: int) -> QuantisedVectors:
        """The vectors, quantised in blocks of 32 or 256."""
        if block not in self._buffers:
            self._buffers[block] = QuantisedVectors(block, self.max_rows, self.n_cols)
        if block not in self._filled:
            self._buffers[block].fill(self.x)
            self._filled.add(block)
        return self._buffers[block]

    def grouped(self, layout: GroupLayout) -> int:
        """Address of the vectors, quantised and arranged in groups."""
        if layout not in self._groups:
            self._groups[layout] = self.quantised(layout.block).group(layout, len(self.x))
        return self._groups[layout]

    def scratch(self, threads: int, n_bytes: int) -> Buffers:
        """A buffer of at least n_bytes for each thread; allocates only to grow."""
        if self._scratch.shape[0] < threads or self._scratch.shape[1] < n_bytes:
            # An odd number of cache lines puts the threads' buffers into different cache sets.
            n_bytes = -(-n_bytes // 128) * 128 + 64
            self._scratch = aligned((threads, n_bytes), np.uint8)
            self._scratch_address = self._scratch.ctypes.data
        return Buffers(self._scratch_address, self._scratch.shape[1])
