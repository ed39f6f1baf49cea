"""y = x W^T for weights of any type, any number of tokens and matrices; rows of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from ..errors import CudaOpsError
from .activations import Activations
from .formats import Format
from .kernels import Vectors, magic, product_kernel, rows_kernel
from .weight import Weight

MAX_TOKENS = 8
"""More are multiplied as f16, by torch."""
SCRATCH_WEIGHTS = 1 << 24
"""Weights that are dequantised at a time: 32 MiB of f16."""
FASTEST = {"Q4_0": (8, 2), "Q4_K": (8, 2), "Q8_0": (4, 1), "F16": (2, 1)}
"""Types → rows and warps for one token that were fastest on an H100."""
ROWS, COLUMNS = 4, 2048
"""Of a program's tile of `rows_kernel`."""


def tile_of(f: Format, tokens: int) -> tuple[int, int]:
    """Rows and warps of a program: what a warp's lanes hold without spilling.

    Each lane reads `step` weights of every row; x is loaded once for all rows. Several tokens take
    half as many rows.
    """
    if tokens == 1 and f.name in FASTEST:
        return FASTEST[f.name]
    light = f.step <= 32 or (f.step <= 64 and not f.has_minimum)
    rows, warps = 4 if light else 2, 2 if f.step <= 32 else 1
    return rows if tokens == 1 else rows // 2, warps


def shape_of(f: Format, tokens: int) -> tuple[int, int]:
    """Rows and steps of a program's tile: a step for each lane."""
    rows, warps = tile_of(f, tokens)
    return rows, 32 * warps


def tokens_at_once(f: Format, n_tokens: int) -> int:
    """Tokens of a program: as many as leave registers for the rows."""
    return min(n_tokens, 2 if f.has_minimum or f.step > 32 else 4)


def linear_many(act: Activations, weights: Sequence[Weight], outs: Sequence[torch.Tensor]) -> None:
    """out = x W^T for matrices that read the T vectors of `act`: outs float32 (T, N), overwritten.

    out[t, r] = sum_k x[t, k] W[r, k]. Up to MAX_TOKENS tokens: of x itself, summed in float32, in
    one launch that reads the `n_bytes` of all weights. More: of x and W rounded to f16, summed in
    float32; the error is at most 2^-10 of sum |x W|. Raises CudaOpsError where shapes do not fit.
    """
    n_tokens, n_cols = act.x.shape
    for weight, out in zip(weights, outs, strict=True):
        _check(weight, out, act.x)
    if not n_tokens:
        return
    if n_tokens > MAX_TOKENS:
        for weight, out in zip(weights, outs, strict=True):
            _many_tokens(act, weight, out)
        return
    tokens = min(tokens_at_once(weight.format, n_tokens) for weight in weights)
    shapes = tuple(shape_of(weight.format, tokens) for weight in weights)
    n_rows = tuple(weight.n_rows for weight in weights)
    tiles = sum(triton.cdiv(n, rows) for n, (rows, _) in zip(n_rows, shapes, strict=True))
    product_kernel[(tiles, triton.cdiv(n_tokens, tokens))](
        Vectors(act.x, n_cols, n_tokens), tuple(weight.planes for weight in weights), tuple(outs),
        n_rows, tuple(out.stride(0) for out in outs), magic(act.x.device),
        FORMATS=tuple(weight.format for weight in weights), SHAPES=shapes, TOKENS=tokens,
        num_warps=max(steps for _, steps in shapes) // 32,
    )  # fmt: skip


def _check(weight: Weight, out: torch.Tensor, x: torch.Tensor) -> None:
    doing = f"multiplying by {weight.name or 'weights'}"
    if x.shape[1] != weight.n_cols or out.shape != (len(x), weight.n_rows):
        raise CudaOpsError(
            f"{doing}: found x {tuple(x.shape)} and out {tuple(out.shape)} for {weight.n_rows} rows"
            f" of {weight.n_cols}, expected x (T, {weight.n_cols}) and out (T, {weight.n_rows})"
        )
    if out.dtype != torch.float32 or out.stride(1) != 1 or out.device != x.device:
        raise CudaOpsError(
            f"{doing}: found out of {out.dtype} on {out.device}, expected float32 rows on "
            f"{x.device}"
        )


def _many_tokens(act: Activations, weight: Weight, out: torch.Tensor) -> None:
    x, factors = act.halves()
    n = max(1, SCRATCH_WEIGHTS // weight.n_cols)
    for first in range(0, weight.n_rows, n):
        w = act.scratch(min(n, weight.n_rows - first), weight.n_cols)
        _read_rows(weight, None, first, weight.factor, w)
        part = out[:, first : first + len(w)]
        if x.is_cuda:
            torch.mm(x, w.T, out_dtype=torch.float32, out=part) if part.is_contiguous() else (
                part.copy_(torch.mm(x, w.T, out_dtype=torch.float32))
            )
        else:  # the interpreter's side: CPUs round products of f16 to f16
            torch.mm(x.float(), w.float().T, out=part)
        part *= factors / weight.factor


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
        _read_rows(weight, ids, 0, 1.0, out)


def _read_rows(
    weight: Weight, ids: torch.Tensor | None, first: int, factor: float, out: torch.Tensor
) -> None:
    """Rows times `factor` into out: those of `ids`, or from `first` on."""
    f, count = weight.format, len(out)
    steps = COLUMNS // f.step
    grid = triton.cdiv(count, ROWS), triton.cdiv(weight.n_cols, COLUMNS)
    rows_kernel[grid](
        weight.planes, ids, out, first, count, weight.n_rows, weight.n_cols, factor,
        magic(out.device), ROWS=ROWS, STEPS=steps, F=f, num_warps=4,
    )  # fmt: skip
