"""Dequantisation in NumPy, by gguf-py, and encoding as Q8_0.

Every format stores a weight as `w = d * q` or `w = d * q - m`. `q` is a small integer, or an entry
of a table of 16 small integers. `d` and `m` are shared by 32 weights (the legacy formats), or they
are products of a float per 256 weights and a small integer per 16 or 32 (the K formats). The order
of the float operations is part of the format: another order would differ in the last bit.

gguf-py is imported only where a type needs it: importing it takes longer than opening a model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..errors import OpsError
from ..types import QuantType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of e2m1 (OCP Microscaling Formats, section 5.3.3); the scale is halved instead.
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def dequantise(quant_type: QuantType, data: Bytes) -> Floats:
    """Rows of a tensor as floats: uint8[..., row_bytes] -> float32[..., n_cols].

    Raises OpsError when a row is not a whole number of blocks or gguf-py cannot decode the type.
    """
    if data.shape[-1] % quant_type.n_bytes:
        raise OpsError(
            f"dequantising {quant_type.name}: found rows of {data.shape[-1]} bytes, expected a"
            f" multiple of {quant_type.n_bytes}"
        )
    data = np.ascontiguousarray(data)
    if quant_type.name == "F32":
        return data.view(np.float32)
    if quant_type.name == "F16":
        return data.view(np.float16).astype(np.float32)
    if quant_type.name == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        # NaN and infinite scales are legal bytes: their products need no warning.
        with np.errstate(all="ignore"):
            return np.asarray(
                dequantize(data, GGMLQuantizationType(quant_type.ggml_id)), np.float32
            )
    except (NotImplementedError, ValueError) as error:
        raise OpsError(
            f"dequantising {quant_type.name}: found a type that gguf-py cannot decode, expected"
            " one that it can; convert the model"
        ) from error


def chunks(n_rows: int, n_cols: int, max_weights: int = 1 << 22) -> Iterator[slice]:
    """Slices of rows with at most `max_weights` weights each (one row at least)."""
    step = max(1, max_weights // max(n_cols, 1))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def re_encode_q8_0(quant_type: QuantType, data: Bytes, n_cols: int) -> Bytes:
    """Rows of any decodable type as Q8_0 rows, a few megabytes of floats at a time.

    uint8[N, row_bytes] -> uint8[N, K / 32 * 34]. Raises OpsError when K % 32 is not 0.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if n_cols % 32:
        raise OpsError(f"encoding Q8_0: found rows of {n_cols}, expected a multiple of 32")
    out = np.empty((len(data), n_cols // 32 * 34), np.uint8)
    for rows in chunks(len(data), n_cols):
        out[rows] = quantize(dequantise(quant_type, data[rows]), GGMLQuantizationType.Q8_0)
    return out
