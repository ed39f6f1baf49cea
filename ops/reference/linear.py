"""The matrix product in NumPy, on the same quantised numbers that the kernels multiply."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import QuantType
from .quants import dequantise

Floats = npt.NDArray[np.float32]


def quantise_activations(x: Floats, block: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """x float32[T, K] -> q int8[T, K], d float32[T, K / block]: d = max |x| / 127, q = round(x/d).

    Bit for bit what kernels multiply quantised matrices by: the quotient is x * (127 / max |x|),
    and blocks below 1e-35 become zeros.
    """
    blocks = x.reshape(len(x), -1, block)
    top = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(top > np.float32(1e-35), np.float32(127) / top, np.float32(0))
    q = np.rint(blocks * inverse.astype(np.float32)).astype(np.int8)
    return q.reshape(x.shape), (top / np.float32(127))[:, :, 0]


def rounded_activations(x: Floats, quant_type: QuantType) -> npt.NDArray[np.float64]:
    """The activations that weights of this type are multiplied by, float64[T, K]: x, or q * d."""
    if quant_type.block == 1:
        return x.astype(np.float64)
    q, d = quantise_activations(x, quant_type.block)
    blocks = q.reshape(len(x), -1, quant_type.block).astype(np.float64)
    return np.asarray((blocks * d[:, :, None]).reshape(x.shape))


def linear_reference(
    x: Floats, quant_type: QuantType, data: npt.NDArray[np.uint8]
) -> npt.NDArray[Any]:
    """x W^T in float64, float64[T, N], of the numbers that the kernels multiply.

    x float32[T, K]; data uint8[N, row_bytes] in the bytes of the file.
    """
    weights = dequantise(quant_type, data).astype(np.float64)
    return rounded_activations(x, quant_type) @ weights.T
