"""Weights to the bytes of a quantised tensor."""

from __future__ import annotations

import numpy as np

from ...jit.arena import aligned
from ...jit.launch import Arguments
from ...jit.threads import n_threads
from ...ops.arrays import F32, U8
from ...ops.types import QUANT_TYPES, QuantType, row_bytes
from ...runtime.engine import on_engine
from ..errors import ConvertError
from .kernels.rows import WORK_BYTES, Rows, can_round, largest_bits_kernel, make_encode_rows

# fmt: off
ENCODABLE = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
)
# fmt: on
"""Names of the types that `encode` writes."""

_WEIGHTS_AT_ONCE = 1 << 14  # that a thread takes, at least
_LEAST_IMPORTANCE = 1e-6  # of the mean: columns that a text did not use still matter
_F16_MAX = 65504.0  # scales and offsets are stored as f16


class EncodeError(ConvertError):
    """Weights that cannot be encoded as asked."""


def encode(
    weights: F32, type_name: str, importance: F32 | None = None, out: U8 | None = None
) -> U8:
    """Rows of float32 as rows of a quantised type: uint8 (rows, bytes of a row).

    weights     float32 (rows, columns), contiguous
    type_name   one of `ENCODABLE`, in capitals or not
    importance  float32 (columns,): the weight of each column in the squared error to minimise,
                Σ importance_j (x_j - decoded_j)²; None: all alike. Q8_0 and floats ignore it.
                Without it, Q4_0, Q4_1, Q5_0 and Q5_1 have the bytes of gguf-py's encoder.
    out         where to write

    The number of threads does not change the bytes. Raises `EncodeError` for other shapes, types
    without an encoder, weights that are not finite or too large for the type, and importances that
    are negative or not finite.
    """
    name = type_name.upper()
    if name not in ENCODABLE:
        raise EncodeError(
            f"encoding {type_name}: found a type without an encoder, expected one of"
            f" {', '.join(ENCODABLE)}"
        )
    quant_type = QUANT_TYPES[name]
    if weights.ndim != 2 or weights.dtype != np.float32 or not weights.flags.c_contiguous:
        raise EncodeError(
            f"encoding {name}: found {weights.dtype} {weights.shape}, expected contiguous float32"
            " (rows, columns)"
        )
    n_rows, n_cols = weights.shape
    n_bytes = row_bytes(quant_type, n_cols)
    if out is None:
        out = np.empty((n_rows, n_bytes), np.uint8)
    elif out.shape != (n_rows, n_bytes) or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise EncodeError(
            f"encoding {name}: found out {out.dtype} {out.shape}, expected contiguous uint8"
            f" {(n_rows, n_bytes)}"
        )
    column_weights = _column_weights(importance, n_cols, name)
    if weights.size:
        on_engine(_encode, weights, quant_type, column_weights, importance is not None, out)
    return out


def _encode(weights: F32, quant_type: QuantType, importance: F32, weighted: bool, out: U8) -> None:
    """On the engine thread."""
    _check_values(weights, quant_type)
    if quant_type.name == "F32":
        out[:] = weights.view(np.uint8)
        return
    works = aligned((n_threads(), WORK_BYTES), np.uint8)
    arguments, rows = Arguments(Rows), Rows(x=weights, importance=importance, out=out, works=works)
    encode_rows = make_encode_rows(quant_type.name, weighted and can_round(quant_type.name))
    encode_rows(arguments.fill(rows), -(-_WEIGHTS_AT_ONCE // weights.shape[1]))


def _check_values(weights: F32, quant_type: QuantType) -> None:
    tops = np.zeros(n_threads(), np.int32)
    largest_bits_kernel(weights.ctypes.data, weights.size, tops.ctypes.data)
    limit = np.float32(np.finfo(np.float32).max if quant_type.name in ("F32", "BF16") else _F16_MAX)
    if tops.max().view(np.float32) <= limit:
        return
    row, column = np.argwhere(~(np.abs(weights) <= limit))[0]
    value = weights[row, column]
    remedy = ": the types bf16 and f32 hold larger ones" if np.isfinite(value) else ""
    raise EncodeError(
        f"encoding {quant_type.name}: found {value} in row {row}, column {column}, expected numbers"
        f" from -{limit:g} to {limit:g}{remedy}"
    )


def _column_weights(importance: F32 | None, n_cols: int, name: str) -> F32:
    """Weights of the columns, 1 on average."""
    if importance is None:
        return np.ones(n_cols, np.float32)
    if importance.shape != (n_cols,):
        raise EncodeError(
            f"encoding {name}: found {importance.shape} importances, expected ({n_cols},)"
        )
    wide = importance.astype(np.float64)
    mean = wide.mean()
    if not (np.isfinite(mean) and wide.min() >= 0):
        raise EncodeError(
            f"encoding {name}: found importances that are negative or not finite, expected mean"
            " squares"
        )
    if mean == 0:
        return np.ones(n_cols, np.float32)
    weights: F32 = np.maximum(wide / mean, _LEAST_IMPORTANCE).astype(np.float32)
    return weights
