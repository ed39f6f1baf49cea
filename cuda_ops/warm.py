"""Compile the kernels of the weights' part for the GPU that is there, ahead of their first use.

Each operation is called as the engine calls it, on small inputs, so that what Triton keeps is what
it will look for: a kernel for a type, a number of tokens, sizes that are multiples of 16 or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from ..ops.types import QUANT_TYPES, row_bytes
from .device import CudaDevice
from .linear import Weight
from .linear.formats import FORMATS

TOKENS = (1, 2, 3, 4, 9)
"""5 to 8 are computed by the kernel for 4 or fewer; 9 and more as f16."""
ROWS = (16, 17)
"""A multiple of 16, and another number, as vocabularies may have."""
WIDTHS = (64, 128, 256, 1024, 2048, 4096, 8192)
"""Of norms: of heads, and of embeddings. A norm is compiled for each power of two."""
HEAD_DIMS = (64, 80, 96, 128, 256)

Operation = tuple[str, Callable[[], object]]
"""Its name, and a call of it."""


def compile_all(
    device: CudaDevice, tell: Callable[[str], None], types: Sequence[str] = tuple(FORMATS)
) -> int:
    """Run each operation once in each form; returns how many calls that were. `tell` is called with
    what comes next."""
    done = 0
    for name in types:
        tell(f"products of {name}")
        for rows in ROWS:
            weight = small_weight(device, name, rows)
            for tokens in TOKENS:
                for matrices in (1, 2, 3):  # one; gate and up; q, k and v
                    multiply(device, weight, tokens, matrices)
            look_up(device, weight)
        done += len(ROWS) * (3 * len(TOKENS) + 1)
    tell("norms, rope, gates")
    operations = pointwise_operations(device)
    for _, call in operations:
        call()
    if device.torch.type == "cuda":
        torch.cuda.synchronize()
    return done + len(operations)


def small_weight(device: CudaDevice, name: str, rows: int) -> Weight:
    """A matrix of one block or more for each row, of zeros."""
    quant = QUANT_TYPES[name]
    n_cols = max(quant.block, 64)
    return device.weight(quant, np.zeros((rows, row_bytes(quant, n_cols)), np.uint8), n_cols, name)


def multiply(device: CudaDevice, weight: Weight, tokens: int, matrices: int) -> None:
    """A number of vectors by the matrix, so many times in one call."""
    x = torch.zeros((tokens, weight.n_cols), device=device.torch)
    outs = [torch.empty((tokens, weight.n_rows), device=device.torch) for _ in range(matrices)]
    act = device.activations(tokens, weight.n_cols).set(x)
    device.linear_many(act, [weight] * matrices, outs)


def look_up(device: CudaDevice, weight: Weight) -> None:
    """A row of the matrix."""
    ids = torch.zeros(1, dtype=torch.int32, device=device.torch)
    device.get_rows(weight, ids, torch.empty((1, weight.n_cols), device=device.torch))


def pointwise_operations(device: CudaDevice) -> list[Operation]:
    """All of them, in each form."""
    ops, zeros = device.pointwise, partial(torch.zeros, device=device.torch)
    calls: list[Operation] = []
    for width in WIDTHS:
        x, branch, out, weight = (zeros(shape) for shape in (*((1, width),) * 3, (width,)))
        calls += [
            (f"rms, {width}", partial(ops.rms_norm, x, weight, 1e-5, out)),
            (f"add rms, {width}", partial(ops.add_rms_norm, x, branch, weight, 1e-5, out)),
            (f"layer, {width}", partial(ops.layer_norm, x, weight, None, 1e-5, out)),
            (f"add layer, {width}",
             partial(ops.add_layer_norm, x, branch, weight, None, 1e-5, out)),
        ]  # fmt: skip
    for head_dim in HEAD_DIMS:
        q, k, table = zeros((1, 4, head_dim)), zeros((1, 2, head_dim)), zeros((1, head_dim))
        calls += [
            (f"{style}, {head_dim}", partial(ops.rope, q, k, table, style))
            for style in ("normal", "neox")
        ]
    return [
        *calls,
        ("swiglu", partial(ops.swiglu, x, branch, out)),
        ("geglu", partial(ops.geglu, x, branch, out)),
        ("gelu", partial(ops.gelu, out)),
        ("relu squared", partial(ops.relu_squared, out)),
        ("add", partial(ops.add, x, branch, out)),
        ("add row", partial(ops.add_row, x, weight)),
        ("multiply row", partial(ops.multiply_row, x, weight)),
        ("scale", partial(ops.scale, x, 0.5)),
        ("softcap", partial(ops.softcap, x, 30.0)),
        ("scale rows", partial(ops.scale_rows, x, zeros(1))),
    ]
