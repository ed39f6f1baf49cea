"""Compile the kernels of the weights' part for the GPU that is there, ahead of their first use.

Each operation is called as the engine calls it, on small inputs, so that what Triton keeps is what
it will look for: a kernel for a type, a number of tokens, sizes that are multiples of 16 or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def compile_all(
    device: CudaDevice, tell: Callable[[str], None], types: Sequence[str] = tuple(FORMATS)
) -> int:
    """Run each operation once in each form; returns how many calls that were. `tell` is called with
    what comes next."""
    done = 0
    for name in types:
        tell(f"products of {name}")
        done += _products(device, name)
    tell("norms, rope, gates")
    done += _pointwise(device)
    if device.torch.type == "cuda":
        torch.cuda.synchronize()
    return done


def _products(device: CudaDevice, name: str) -> int:
    quant = QUANT_TYPES[name]
    n_cols, done = max(quant.block, 64), 0
    for rows in ROWS:
        data = np.zeros((rows, row_bytes(quant, n_cols)), np.uint8)
        weight: Weight = device.weight(quant, data, n_cols, name)
        for tokens in TOKENS:
            x = torch.zeros((tokens, n_cols), device=device.torch)
            out = torch.empty((tokens, rows), device=device.torch)
            act = device.activations(tokens, n_cols).set(x)
            for many in (1, 2, 3):  # one; gate and up; q, k and v
                device.linear_many(act, [weight] * many, [out.clone() for _ in range(many)])
                done += 1
        device.get_rows(weight, torch.zeros(1, dtype=torch.int32, device=device.torch), x[:1])
        done += 1
    return done


def _pointwise(device: CudaDevice) -> int:
    ops, at, done = device.pointwise, device.torch, 0
    for width in WIDTHS:
        x, branch, out = (torch.zeros((1, width), device=at) for _ in range(3))
        weight = torch.ones(width, device=at)
        ops.rms_norm(x, weight, 1e-5, out)
        ops.add_rms_norm(x, branch, weight, 1e-5, out)
        ops.layer_norm(x, weight, None, 1e-5, out)
        ops.add_layer_norm(x, branch, weight, None, 1e-5, out)
        done += 4
    for head_dim in (64, 80, 96, 128, 256):
        q = torch.zeros((1, 4, head_dim), device=at)
        for style in ("normal", "neox"):
            ops.rope(q, q[:, :2].clone(), torch.zeros((1, head_dim), device=at), style)
            done += 1
    ops.swiglu(x, branch, out)
    ops.geglu(x, branch, out)
    ops.add(x, branch, out)
    ops.add_row(x, weight)
    ops.scale(x, 0.5)
    ops.softcap(x, 30.0)
    ops.scale_rows(x, torch.ones(1, device=at))
    return done + 7
