"""Norms, rope, gated activations, sums, soft caps: `ops.pointwise` over tensors of the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .errors import CudaOpsError
from .memory import check_floats
from .pointwise_kernels import (
    ADD,
    GEGLU,
    GELU,
    MULTIPLY,
    RELU_SQUARED,
    SCALE,
    SIGMOID,
    SOFTCAP,
    SOFTPLUS,
    SWIGLU,
    elementwise_kernel,
    norm_kernel,
    rope_kernel,
    rows_kernel,
)

BLOCK = 1024
_STYLES = {"normal": False, "neox": True}


def _expected(name: str, x: torch.Tensor, wanted: str) -> CudaOpsError:
    return CudaOpsError(f"{name} is {x.dtype} {tuple(x.shape)}, expected float32 {wanted}")


def _norm(
    op: str,
    x: torch.Tensor,
    branch: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
) -> None:
    shape = tuple(x.shape)
    if len(shape) != 2:
        raise _expected(f"{op}: x", x, "(rows, columns)")
    check_floats(f"{op}: x", x, shape)
    check_floats(f"{op}: weight", weight, shape[1:])
    check_floats(f"{op}: out", out, shape)
    if branch is not None:
        check_floats(f"{op}: branch", branch, shape)
    if bias is not None:
        check_floats(f"{op}: bias", bias, shape[1:])
    n_rows, n = shape
    block = triton.next_power_of_2(max(n, 16))
    rows = max(1, min(512 // block, n_rows))
    rows = triton.next_power_of_2(rows)
    norm_kernel[(triton.cdiv(n_rows, rows),)](
        x, branch, weight, bias, out, n_rows, n, eps, CENTRED=op == "layer_norm", ROWS=rows,
        BLOCK=block, num_warps=4 if block <= 2048 else 16,
    )  # fmt: skip


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, for each row.

    x, out float32 (T, D), or (T * heads, E) for a norm per head; weight (D,). out may be x.
    """
    _norm("rms_norm", x, None, weight, None, eps, out)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
) -> None:
    """out = (x - mean) / sqrt(variance + eps) * weight + bias, for each row.

    x, out float32 (T, D); weight (D,), bias (D,) or None. out may be x.
    """
    _norm("layer_norm", x, None, weight, bias, eps, out)


def add_rms_norm(
    x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """x = x + branch in place, then out = rms_norm(x); float32 (T, D), all different."""
    _norm("rms_norm", x, branch, weight, None, eps, out)


def add_layer_norm(
    x: torch.Tensor,
    branch: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
) -> None:
    """x = x + branch in place, then out = layer_norm(x); as `add_rms_norm`."""
    _norm("layer_norm", x, branch, weight, bias, eps, out)


def rope(q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, style: str) -> None:
    """Rotate the first n_rot elements of each head, in place: (a, b) to (a c - b s, a s + b c).

    q, k float32 (T, heads, E), whose numbers of heads may differ; cos_sin float32 (T, n_rot),
    n_rot <= E: n_rot/2 cosines, then n_rot/2 sines, for these tokens' positions. Pair i is
    (2i, 2i+1) in style "normal" and (i, i + n_rot/2) in style "neox".
    """
    shape, k_shape = tuple(q.shape), tuple(k.shape)
    if len(shape) != 3:
        raise _expected("rope: q", q, "(tokens, heads, head_dim)")
    if len(k_shape) != 3 or k_shape[0] != shape[0] or k_shape[2] != shape[2]:
        raise _expected("rope: k", k, f"({shape[0]}, heads, {shape[2]})")
    check_floats("rope: q", q, shape)
    check_floats("rope: k", k, k_shape)
    table = tuple(cos_sin.shape)
    if len(table) != 2 or table[1] % 2 or table[1] > shape[2]:
        raise _expected("rope: table", cos_sin, f"({shape[0]}, even number up to {shape[2]})")
    check_floats("rope: table", cos_sin, (shape[0], table[1]))
    if style not in _STYLES:
        raise CudaOpsError(f"rope: style is {style!r}, expected 'normal' or 'neox'")
    half = table[1] // 2
    if not half or not shape[0]:
        return
    pairs = triton.next_power_of_2(half)
    heads = max(1, 256 // pairs)
    rope_kernel[(shape[0], triton.cdiv(shape[1] + k_shape[1], heads))](
        q, k, cos_sin, shape[1], k_shape[1], shape[2], half, NEOX=_STYLES[style], HEADS=heads,
        PAIRS=pairs, num_warps=2,
    )  # fmt: skip


def _elementwise(
    name: str, op: tl.constexpr, x: torch.Tensor, y: torch.Tensor, c: float, out: torch.Tensor
) -> None:
    shape = tuple(x.shape)
    check_floats(f"{name}: first operand", x, shape)
    check_floats(f"{name}: second operand", y, shape)
    check_floats(f"{name}: out", out, shape)
    if x.numel():
        grid = (triton.cdiv(x.numel(), BLOCK),)
        elementwise_kernel[grid](x, y, out, x.numel(), c, OP=op.value, BLOCK=BLOCK, num_warps=4)


def _on_rows(name: str, op: tl.constexpr, x: torch.Tensor, y: torch.Tensor, axis: int) -> None:
    if len(x.shape) != 2:
        raise _expected(f"{name}: x", x, "(rows, columns)")
    n_rows, n = x.shape
    check_floats(f"{name}: x", x, (n_rows, n))
    check_floats(f"{name}: second operand", y, (x.shape[axis],))
    if x.numel():
        grid = triton.cdiv(n_rows, 4), triton.cdiv(n, 256)
        rows_kernel[grid](x, y, n_rows, n, OP=op.value, ROWS=4, BLOCK=256, num_warps=4)


def swiglu(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
    """out = gate / (1 + exp(-gate)) * up; float32 (T, F). out may be gate or up."""
    _elementwise("swiglu", SWIGLU, gate, up, 0.0, out)


def geglu(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
    """out = gelu(gate) * up, gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    float32 (T, F). out may be gate or up. Source: ggml_gelu, without its table in f16.
    """
    _elementwise("geglu", GEGLU, gate, up, 0.0, out)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """out = x / (1 + exp(-gate)); float32 of one shape. out may be x or gate."""
    _elementwise("sigmoid_gate", SIGMOID, gate, x, 0.0, out)


def softplus_gate(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """out = x log(1 + exp(gate)); float32 of one shape. out may be x or gate."""
    _elementwise("softplus_gate", SOFTPLUS, gate, x, 0.0, out)


def split_pairs(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    """first = x[:, :, 0], second = x[:, :, 1]; x float32 (T, heads, 2, n)."""
    if len(x.shape) != 4 or x.shape[2] != 2:
        raise _expected("split_pairs: x", x, "(tokens, heads, 2, elements)")
    check_floats("split_pairs: x", x, tuple(x.shape))
    for i, half in enumerate((first, second)):
        check_floats("split_pairs: half", half, (*x.shape[:2], x.shape[3]))
        half.copy_(x[:, :, i])


def gelu(x: torch.Tensor) -> None:
    """x = gelu(x), in place; gelu as in `geglu`."""
    _elementwise("gelu", GELU, x, x, 0.0, x)


def relu_squared(x: torch.Tensor) -> None:
    """x = max(x, 0)^2, in place."""
    _elementwise("relu_squared", RELU_SQUARED, x, x, 0.0, x)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    """out = x + y; float32 of one shape. out may be x or y."""
    _elementwise("add", ADD, x, y, 0.0, out)


def add_row(x: torch.Tensor, row: torch.Tensor) -> None:
    """x = x + row, in place: adds row float32 (N,) to each row of x float32 (T, N)."""
    _on_rows("add_row", ADD, x, row, 1)


def multiply_row(x: torch.Tensor, row: torch.Tensor) -> None:
    """x = x * row, in place: multiplies each row of x float32 (T, N) by row float32 (N,)."""
    _on_rows("multiply_row", MULTIPLY, x, row, 1)


def scale_rows(x: torch.Tensor, factors: torch.Tensor) -> None:
    """x = x * factors, in place: multiplies row t of x float32 (T, N) by factors[t]."""
    _on_rows("scale_rows", SCALE, x, factors, 0)


def scale(x: torch.Tensor, factor: float) -> None:
    """x = x * factor, in place."""
    _elementwise("scale", SCALE, x, x, factor, x)


def softcap(x: torch.Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap), in place; cap > 0."""
    if not cap > 0:
        raise CudaOpsError(f"softcap: cap is {cap}, expected a positive number")
    _elementwise("softcap", SOFTCAP, x, x, cap, x)
