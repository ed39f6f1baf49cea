"""Checks of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OpsError

_FLOAT = np.dtype(np.float32)


def check_floats(name: str, x: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise OpsError unless x is contiguous float32 of this shape."""
    if x.shape != shape or x.dtype != _FLOAT or not x.flags.c_contiguous:
        value = f"{x.dtype} {x.shape}" + ("" if x.flags.c_contiguous else ", not contiguous")
        raise OpsError(f"{name} is {value}, expected contiguous float32 {shape}")
