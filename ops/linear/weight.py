"""A matrix of the model in the form that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import OpsError
from ..reference.quants import re_encode_q8_0
from ..simd import aligned
from ..types import QUANT_TYPES, QuantType, Treatment, row_bytes, treatment_of
from .columns import ROWS
from .interleaved import interleave_kernel
from .kformats import KINDS

Q8_0 = QUANT_TYPES["Q8_0"]


class Arena:
    """Memory for many matrices, which stays as long as one of them does.

    Taken in large pieces: NumPy asks for huge pages from 4 MB on, and in small pages a matrix of
    half that size takes five times as long to be written first.
    """

    PIECE = 32 << 20

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def take(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """uint8[n_bytes], on a cache line."""
        if n_bytes > len(self._free):
            self._free = aligned(max(n_bytes, self.PIECE), np.uint8)
        taken, self._free = self._free[:n_bytes], self._free[-(-n_bytes // 64) * 64 :]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """N rows of K weights: `linear` computes x W^T, `get_rows` reads single rows.

    type         how the file stores them
    stored_type  how `data` stores them: the same, unless they were re-encoded
    data         uint8[N, row_bytes], a view of the mapped file unless they were re-encoded
    interleaved  the same bytes in the order of `interleaved`, where the treatment is "repacked":
                 products read these, and `data` is for single rows
    """

    name: str
    type: QuantType
    n_rows: int
    n_cols: int
    treatment: Treatment
    stored_type: QuantType
    data: npt.NDArray[np.uint8] = field(repr=False)
    address: int
    interleaved: npt.NDArray[np.uint8] | None = field(repr=False)

    @classmethod
    def prepare(
        cls,
        type: QuantType,
        data: npt.NDArray[np.uint8],
        n_cols: int,
        name: str = "",
        arena: Arena | None = None,
    ) -> Weight:
        """Make the rows of a file's tensor, uint8[N, row_bytes(type, n_cols)], ready for kernels.

        Types with kernels stay where they are; others are re-encoded as Q8_0. With an arena, types
        that gain by it are interleaved in its memory, if there are rows by the 16 (`treatment` says
        what was done). Raises OpsError when the bytes do not fit the shape or the type cannot be
        used.
        """
        what = f"preparing weights {name or '(unnamed)'}"
        expected = row_bytes(type, n_cols)
        if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != expected or n_cols < 1:
            raise OpsError(
                f"{what}: found {data.dtype} of shape {data.shape}, expected uint8 (N, {expected})"
                f" for rows of {n_cols} {type.name}"
            )
        treatment, stored_type, interleaved = treatment_of(type), type, None
        if treatment == "unsupported":
            raise OpsError(
                f"{what}: found type {type.name}, which holds no weights that can be used"
            )
        if treatment == "re-encoded":
            if n_cols % Q8_0.block:
                raise OpsError(
                    f"{what}: found rows of {n_cols} {type.name}, expected a multiple of"
                    f" {Q8_0.block} to re-encode them as Q8_0"
                )
            stored_type, data = Q8_0, re_encode_q8_0(type, data, n_cols)
        elif data.strides != (expected, 1):
            data = np.ascontiguousarray(data)
        n_rows, address = data.shape[0], data.ctypes.data
        if treatment == "repacked":
            if arena is None or n_rows % ROWS:
                treatment = "native"
            else:
                interleaved = arena.take(data.nbytes)
                interleave_kernel(KINDS[type.name])(
                    address, expected, n_rows, interleaved.ctypes.data
                )
        return cls(name, type, n_rows, n_cols, treatment, stored_type, data, address, interleaved)

    @property
    def products_address(self) -> int:
        """Of the bytes that products read."""
        return self.address if self.interleaved is None else int(self.interleaved.ctypes.data)

    @property
    def n_bytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.data.nbytes
