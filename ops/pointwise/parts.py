"""Copies parts of the rows of heads, also from tokens with heads to heads with tokens.

Imports no Numba.
"""

import numpy as np

from ...jit.launch import DefinedKernel, lazy_kernel
from ..arrays import F32
from ..errors import OpsError

_FLOAT = np.dtype(np.float32)
_SERIAL_FLOATS = 16_384  # copying as many takes less time than waking the threads


@lazy_kernel
def _copy_kernel() -> DefinedKernel:
    from .parts_kernel import copy_kernel

    return copy_kernel


def copy_part(x: F32, first: int, out: F32, at: int, n: int, *, swap: bool = False) -> None:
    """out[i, j, at : at + n] = x[i, j, first : first + n]; swap: out[j, i, …].

    x float32 (I, J, a), out float32 (I, J, b), or (J, I, b) with `swap`; they share no memory.
    Raises OpsError where shapes do not fit.
    """
    for name, y in (("x", x), ("out", out)):
        if y.ndim != 3 or y.dtype != _FLOAT or not y.flags.c_contiguous:
            raise OpsError(
                f"copy_part: {name} is {y.dtype} {y.shape}, expected contiguous float32 of 3 axes"
            )
    n_i, n_j, width = x.shape
    to_i, to_j = out.strides[:2]
    expected = n_i, n_j
    if swap:
        expected, (to_j, to_i) = (n_j, n_i), (to_i, to_j)
    if out.shape[:2] != expected:
        raise OpsError(f"copy_part: out is {out.shape}, expected {expected} rows")
    if n < 0 or not 0 <= first <= width - n or not 0 <= at <= out.shape[2] - n:
        raise OpsError(
            f"copy_part: {n} numbers from {first} of rows of {width} to {at} of rows of "
            f"{out.shape[2]}"
        )
    source, target = x.ctypes.data + 4 * first, out.ctypes.data + 4 * at
    strides = 4 * width, to_i, to_j
    parallel = n_i * n_j * n > _SERIAL_FLOATS
    _copy_kernel(source, target, n_i, n_j, n, *strides, parallel=parallel)
