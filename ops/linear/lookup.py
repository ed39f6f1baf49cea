"""Rows of a matrix as floats: what a token id stands for. Imports no Numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...jit.launch import DefinedKernel, lazy_kernels
from ..errors import OpsError
from .weight import Weight


@lazy_kernels
def _block_rows(type_name: str) -> DefinedKernel:
    from .single_rows import make_block_rows

    return make_block_rows(type_name)


@lazy_kernels
def _float_rows(type_name: str) -> DefinedKernel:
    from .single_rows import make_float_rows

    return make_float_rows(type_name)


def get_rows(weight: Weight, ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Rows of the matrix as floats, as exact as the file: out[t] = W[ids[t]].

    ids int32[T], out float32[T, K], contiguous both. Raises OpsError for ids outside the matrix and
    for other shapes and types. While a graph is recorded, the ids that `ids` will hold when it
    runs are not known: whoever changes them checks them.
    """
    for what, x, dtype, shape in (
        ("out", out, np.float32, (len(ids), weight.n_cols)),
        ("ids", ids, np.int32, (len(ids),)),
    ):
        if x.shape != shape or x.dtype != dtype or not x.flags.c_contiguous:
            raise OpsError(
                f"reading rows of {weight.name}: found {what} {x.dtype} {x.shape}, expected"
                f" contiguous {np.dtype(dtype)} {shape}"
            )
    wrong = (ids < 0) | (ids >= weight.n_rows)
    if wrong.any():
        raise OpsError(
            f"reading rows of {weight.name}: found row {int(ids[wrong][0])}, expected 0 to"
            f" {weight.n_rows - 1}"
        )
    stored = weight.stored_type
    read = (_float_rows if stored.block == 1 else _block_rows)(stored.name)
    n_ids, n_blocks = len(ids), weight.n_cols // stored.block
    read(*weight.matrix, ids.ctypes.data, n_ids, n_blocks, out.ctypes.data, parallel=n_ids > 1)
