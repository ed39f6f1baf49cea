"""Rows of a matrix as floats: what a token id stands for. Imports no Numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...jit.launch import kernels
from ..errors import OpsError
from .weight import Weight

_block_rows = kernels(f"{__package__}.single_rows", "block_rows")
_float_rows = kernels(f"{__package__}.single_rows", "float_rows")


def get_rows(weight: Weight, ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Rows of the matrix as floats, as exact as the file: out[t] = W[ids[t]].

    ids int32[T], out float32[T, K], contiguous both. Raises OpsError for ids outside the matrix and
    for other shapes and types. While steps are recorded, the ids that `ids` will hold when they run
    are not known: whoever changes them checks them.
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
    of = _float_rows if stored.block == 1 else _block_rows
    of(stored.name)(
        weight.address, weight.data.shape[1], ids.ctypes.data, len(ids),
        weight.n_cols // stored.block, out.ctypes.data,
        parallel=len(ids) > 1,
    )  # fmt: skip
