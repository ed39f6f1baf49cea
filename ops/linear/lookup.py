"""Reads rows of a matrix as floats: the embeddings of tokens. Imports no Numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...jit.launch import DefinedKernel, lazy_kernels
from ..errors import OpsError
from .weight import Weight


@lazy_kernels
def _get_rows(type_name: str) -> DefinedKernel:
    from .single_rows import make_get_rows

    return make_get_rows(type_name)


def get_rows(weight: Weight, ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Rows of the matrix as floats, as exact as the file: out[t] = W[ids[t]].

    ids int32[T] and out float32[T, K], both contiguous. Raises OpsError for ids outside the matrix
    and for other shapes and types. A graph reads `ids` again whenever it runs: whoever changes them
    has to check them.
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
    n_ids, n_blocks = len(ids), weight.n_cols // weight.stored_type.block
    addresses = ids.ctypes.data, n_ids, n_blocks, out.ctypes.data
    _get_rows(weight.stored_type.name)(*weight.matrix, *addresses, parallel=n_ids > 1)
