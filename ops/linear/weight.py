"""A matrix of the model in the form that the kernels read. Imports no Numba."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...jit.arena import Arena
from ...jit.launch import DefinedKernel, lazy_kernels
from ..errors import OpsError
from ..reference.quants import re_encode_q8_0
from ..types import QUANT_TYPES, QuantType, Treatment, is_repacked, row_bytes
from .arguments import Matrix

Q8_0 = QUANT_TYPES["Q8_0"]


@lazy_kernels
def _interleave(type_name: str) -> DefinedKernel:
    from .decode.interleaved import make_interleave

    return make_interleave(type_name)


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """N rows of K weights: `linear` computes x W^T, `get_rows` reads single rows.

    type            the file's type
    stored_type     the type of `data`: the same, unless the weights were re-encoded
    data            uint8[N, row_bytes], a view of the mapped file unless they were re-encoded
    interleaved     the same bytes in the order of `decode.interleaved`, for products, if the
                    treatment is "repacked"; single rows are read from `data`
    matrix          the rows from which kernels read single rows
    product_matrix  the rows for products
    """

    name: str
    type: QuantType
    n_rows: int
    n_cols: int
    treatment: Treatment
    stored_type: QuantType
    data: npt.NDArray[np.uint8] = field(repr=False)
    interleaved: npt.NDArray[np.uint8] | None = field(repr=False)
    matrix: Matrix
    product_matrix: Matrix

    @classmethod
    def prepare(
        cls,
        type: QuantType,
        data: npt.NDArray[np.uint8],
        n_cols: int,
        name: str = "",
        arena: Arena | None = None,
    ) -> Weight:
        """Prepare the rows of a file's tensor, uint8[N, row_bytes(type, n_cols)], for kernels.

        Kernels read most types in place; others are re-encoded as Q8_0. With an arena, repacked
        types are interleaved in its memory if the number of rows is a multiple of 16. `treatment`
        says which of these it was. Raises OpsError if the bytes do not fit the shape or the type
        cannot be used.
        """
        task = f"preparing weights {name or '(unnamed)'}"
        expected = row_bytes(type, n_cols)
        if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != expected or n_cols < 1:
            raise OpsError(
                f"{task}: found {data.dtype} of shape {data.shape}, expected uint8 (N, {expected})"
                f" for rows of {n_cols} {type.name}"
            )
        treatment, stored_type, interleaved = type.treatment, type, None
        if treatment == "repacked" and (arena is None or not is_repacked(type, data.shape[0])):
            treatment = "native"
        if treatment == "unsupported":
            raise OpsError(
                f"{task}: found type {type.name}, which holds no weights that can be used"
            )
        if treatment == "re-encoded":
            if n_cols % Q8_0.block:
                raise OpsError(
                    f"{task}: found rows of {n_cols} {type.name}, expected a multiple of"
                    f" {Q8_0.block} to re-encode them as Q8_0"
                )
            stored_type, data = Q8_0, re_encode_q8_0(type, data, n_cols)
        elif data.strides != (expected, 1):
            data = np.ascontiguousarray(data)
        n_rows = data.shape[0]
        matrix = product_matrix = Matrix(data.ctypes.data, data.shape[1], n_rows)
        if treatment == "repacked" and arena is not None:
            interleaved = arena.take(data.nbytes)
            product_matrix = matrix._replace(data=int(interleaved.ctypes.data))
            _interleave(type.name)(*matrix, product_matrix.data)
        return cls(
            name=name,
            type=type,
            n_rows=n_rows,
            n_cols=n_cols,
            treatment=treatment,
            stored_type=stored_type,
            data=data,
            interleaved=interleaved,
            matrix=matrix,
            product_matrix=product_matrix,
        )

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads."""
        return self.data.nbytes

    @property
    def is_copy(self) -> bool:
        """Whether products read other memory than the file's pages."""
        return self.interleaved is not None or self.treatment == "re-encoded"
