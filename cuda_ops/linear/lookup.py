"""Rows of a matrix as floats: the embeddings of tokens, and tiles for torch's products."""

from __future__ import annotations

import torch
import triton

from ..errors import CudaOpsError
from .kernels import magic, rows_kernel
from .weight import Weight

ROWS, COLUMNS = 4, 2048
"""Of a program's tile."""


def get_rows(weight: Weight, ids: torch.Tensor, out: torch.Tensor) -> None:
    """Rows of the matrix as floats, as exact as the file: out[t] = W[ids[t]].

    ids int32 (T,) and out float32 (T, K), both contiguous. Ids in GPU memory are not looked at
    here, since that would wait for the GPU: one outside the matrix gives a row of NaN. Raises
    CudaOpsError for other shapes and types.
    """
    for name, x, dtype, shape in (
        ("out", out, torch.float32, (len(ids), weight.n_cols)),
        ("ids", ids, torch.int32, (len(ids),)),
    ):
        if tuple(x.shape) != shape or x.dtype != dtype or not x.is_contiguous():
            raise CudaOpsError(
                f"reading rows of {weight.name}: found {name} {x.dtype} {tuple(x.shape)}, expected"
                f" contiguous {dtype} {shape}"
            )
    if len(ids):
        _launch(weight, ids, 0, 1.0, out)


def dequantise(weight: Weight, first: int, out: torch.Tensor) -> None:
    """Rows from `first` on times `weight.factor`: out f16 (rows, K), contiguous."""
    _launch(weight, None, first, weight.factor, out)


def _launch(
    weight: Weight, ids: torch.Tensor | None, first: int, factor: float, out: torch.Tensor
) -> None:
    f, count = weight.format, len(out)
    steps = COLUMNS // f.step
    grid = triton.cdiv(count, ROWS), triton.cdiv(weight.n_cols, COLUMNS)
    rows_kernel[grid](
        weight.planes, ids, out, first, count, weight.n_rows, weight.n_cols, factor,
        magic(out.device), ROWS=ROWS, STEPS=steps, F=f, num_warps=4,
    )  # fmt: skip
