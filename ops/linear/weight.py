"""A matrix of the model in the form that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import OpsError
from ..reference.quants import re_encode_q8_0
from ..types import QUANT_TYPES, QuantType, Treatment, row_bytes, treatment_of

Q8_0 = QUANT_TYPES["Q8_0"]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """N rows of K weights: `linear` computes x W^T, `get_rows` reads single rows.

    type         how the file stores them
    stored_type  how `data` stores them: the same, unless they were re-encoded
    data         uint8[N, row_bytes], a view of the mapped file where the treatment is "native"
    """

    name: str
    type: QuantType
    n_rows: int
    n_cols: int
    treatment: Treatment
    stored_type: QuantType
    data: npt.NDArray[np.uint8] = field(repr=False)
    address: int

    @classmethod
    def prepare(
        cls, type: QuantType, data: npt.NDArray[np.uint8], n_cols: int, name: str = ""
    ) -> Weight:
        """Make the rows of a file's tensor, uint8[N, row_bytes(type, n_cols)], ready for kernels.

        Types with kernels stay where they are; others are re-encoded as Q8_0 (`treatment` says
        so). Raises OpsError when the bytes do not fit the shape or the type cannot be used.
        """
        what = f"preparing weights {name or '(unnamed)'}"
        expected = row_bytes(type, n_cols)
        if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != expected or n_cols < 1:
            raise OpsError(
                f"{what}: found {data.dtype} of shape {data.shape}, expected uint8 (N, {expected})"
                f" for rows of {n_cols} {type.name}"
            )
        treatment = treatment_of(type)
        stored_type = type
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
        return cls(
            name, type, data.shape[0], n_cols, treatment, stored_type, data, data.ctypes.data
        )

    @property
    def n_bytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.data.nbytes
