"""The checking wrappers of the pointwise operations. Imports no Numba."""

import numpy as np

from ...jit.launch import DefinedKernel, lazy_kernel
from ..arrays import F32
from ..errors import OpsError
from .codes import (
    ADD,
    CLAMPED_SWIGLU,
    GEGLU,
    GELU,
    MULTIPLY,
    RELU_SQUARED,
    SCALE,
    SIGMOID,
    SOFTCAP,
    SOFTPLUS,
    SWIGLU,
)

_FLOAT = np.dtype(np.float32)
_STYLES = {"normal": 0, "neox": 1}
_SERIAL_FLOATS = 16_384  # inputs of this size take less time than waking the threads


@lazy_kernel
def _elementwise_kernel() -> DefinedKernel:
    from .elementwise import elementwise_kernel

    return elementwise_kernel


@lazy_kernel
def _rows_kernel() -> DefinedKernel:
    from .elementwise import rows_kernel

    return rows_kernel


@lazy_kernel
def _split_kernel() -> DefinedKernel:
    from .elementwise import split_kernel

    return split_kernel


@lazy_kernel
def _norm_kernel() -> DefinedKernel:
    from .norms import norm_kernel

    return norm_kernel


@lazy_kernel
def _rope_kernel() -> DefinedKernel:
    from .rotary import rope_kernel

    return rope_kernel


def _fail(name: str, x: F32, expected: str) -> OpsError:
    value = f"{x.dtype} {x.shape}" + ("" if x.flags.c_contiguous else ", not contiguous")
    return OpsError(f"{name} is {value}, expected contiguous float32 {expected}")


def _check(op: str, name: str, x: F32, shape: tuple[int, ...]) -> None:
    if x.shape != shape or x.dtype != _FLOAT or not x.flags.c_contiguous:
        raise _fail(f"{op}: {name}", x, str(shape))


def _norm(
    op: str, x: F32, branch: F32 | None, weight: F32, bias: F32 | None, eps: float, out: F32
) -> None:
    shape = x.shape
    if len(shape) != 2:
        raise _fail(f"{op}: x", x, "(rows, columns)")
    _check(op, "x", x, shape)
    _check(op, "weight", weight, shape[1:])
    _check(op, "out", out, shape)
    if branch is not None:
        _check(op, "branch", branch, shape)
    if bias is not None:
        _check(op, "bias", bias, shape[1:])
    _norm_kernel(
        _address(x),
        *shape,
        _address(branch),
        _address(weight),
        _address(bias),
        op == "layer_norm",
        _address(out),
        eps,
        parallel=x.size > _SERIAL_FLOATS,
    )


def _address(x: F32 | None) -> int:
    return 0 if x is None else int(x.ctypes.data)


def rms_norm(x: F32, weight: F32, eps: float, out: F32) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, for each row.

    x, out float32 (T, D), or (T * heads, E) for a norm per head; weight (D,). out may be x.
    """
    _norm("rms_norm", x, None, weight, None, eps, out)


def layer_norm(x: F32, weight: F32, bias: F32 | None, eps: float, out: F32) -> None:
    """out = (x - mean) / sqrt(variance + eps) * weight + bias, for each row.

    x, out float32 (T, D); weight (D,), bias (D,) or None. out may be x.
    """
    _norm("layer_norm", x, None, weight, bias, eps, out)


def add_rms_norm(x: F32, branch: F32, weight: F32, eps: float, out: F32) -> None:
    """x = x + branch in place, then out = rms_norm(x), row by row.

    Bit-equal to `add` and then `rms_norm`. x, branch, out float32 (T, D), all different.
    """
    _norm("rms_norm", x, branch, weight, None, eps, out)


def add_layer_norm(
    x: F32, branch: F32, weight: F32, bias: F32 | None, eps: float, out: F32
) -> None:
    """x = x + branch in place, then out = layer_norm(x); as `add_rms_norm`."""
    _norm("layer_norm", x, branch, weight, bias, eps, out)


def rope(q: F32, k: F32, cos_sin: F32, style: str) -> None:
    """Rotate the first n_rot elements of each head, in place: (a, b) to (a c - b s, a s + b c).

    q, k float32 (T, heads, E), whose numbers of heads may differ; cos_sin float32 (T, n_rot),
    n_rot <= E: n_rot/2 cosines, then n_rot/2 sines, for these tokens' positions. Pair i is
    (2i, 2i+1) in style "normal" and (i, i + n_rot/2) in style "neox".
    """
    shape, k_shape = q.shape, k.shape
    if len(shape) != 3:
        raise _fail("rope: q", q, "(tokens, heads, head_dim)")
    if len(k_shape) != 3 or k_shape[0] != shape[0] or k_shape[2] != shape[2]:
        raise _fail("rope: k", k, f"({shape[0]}, heads, {shape[2]})")
    _check("rope", "q", q, shape)
    _check("rope", "k", k, k_shape)
    table = cos_sin.shape
    if len(table) != 2 or table[1] % 2 or table[1] > shape[2]:
        raise _fail("rope: table", cos_sin, f"({shape[0]}, even number up to {shape[2]})")
    _check("rope", "table", cos_sin, (shape[0], table[1]))
    if style not in _STYLES:
        raise OpsError(f"rope: style is {style!r}, expected 'normal' or 'neox'")
    _rope_kernel(
        _address(q),
        _address(k),
        shape[0],
        shape[1],
        k_shape[1],
        shape[2],
        _address(cos_sin),
        table[1] // 2,
        _STYLES[style],
        parallel=q.size + k.size > _SERIAL_FLOATS,
    )


def _elementwise(name: str, op: int, x: F32, y: F32, c: float, out: F32) -> None:
    shape = x.shape
    _check(name, "first operand", x, shape)
    if y is not x:
        _check(name, "second operand", y, shape)
    if out is not x:
        _check(name, "out", out, shape)
    addresses = _address(x), _address(y), _address(out)
    _elementwise_kernel(op, *addresses, x.size, c, parallel=x.size > _SERIAL_FLOATS)


def _on_rows(name: str, op: int, x: F32, y: F32, expected: int) -> None:
    if len(x.shape) != 2:
        raise _fail(f"{name}: x", x, "(rows, columns)")
    _check(name, "x", x, x.shape)
    _check(name, "second operand", y, (expected,))
    _rows_kernel(op, _address(x), _address(y), *x.shape, parallel=x.size > _SERIAL_FLOATS)


def swiglu(gate: F32, up: F32, out: F32) -> None:
    """out = gate / (1 + exp(-gate)) * up; float32 (T, F). out may be gate or up."""
    _elementwise("swiglu", SWIGLU, gate, up, 0.0, out)


def geglu(gate: F32, up: F32, out: F32) -> None:
    """out = gelu(gate) * up, gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    float32 (T, F). out may be gate or up. Source: ggml_gelu, without its table in f16.
    """
    _elementwise("geglu", GEGLU, gate, up, 0.0, out)


def clamped_swiglu(gate: F32, up: F32, out: F32) -> None:
    """out = g / (1 + exp(-1.702 g)) (u + 1), g = min(gate, 7), u = up clamped to -7 … 7.

    float32 (T, F). out may be gate or up. Source: gpt-oss's reference model.
    """
    _elementwise("clamped_swiglu", CLAMPED_SWIGLU, gate, up, 0.0, out)


def sigmoid_gate(x: F32, gate: F32, out: F32) -> None:
    """out = x / (1 + exp(-gate)); float32 of one shape. out may be x or gate."""
    _elementwise("sigmoid_gate", SIGMOID, gate, x, 0.0, out)


def softplus_gate(x: F32, gate: F32, out: F32) -> None:
    """out = x log(1 + exp(gate)); float32 of one shape. out may be x or gate."""
    _elementwise("softplus_gate", SOFTPLUS, gate, x, 0.0, out)


def split_pairs(x: F32, first: F32, second: F32) -> None:
    """first = x[:, :, 0], second = x[:, :, 1]: the halves of each head's row.

    x float32 (T, heads, 2, n); first, second (T, heads, n).
    """
    if len(x.shape) != 4 or x.shape[2] != 2:
        raise _fail("split_pairs: x", x, "(tokens, heads, 2, elements)")
    tokens, heads, _, n = x.shape
    _check("split_pairs", "x", x, x.shape)
    for name, half in (("first", first), ("second", second)):
        _check("split_pairs", name, half, (tokens, heads, n))
    addresses = _address(first), _address(second)
    parallel = x.size > _SERIAL_FLOATS
    _split_kernel(_address(x), tokens * heads, n, *addresses, parallel=parallel)


def gelu(x: F32) -> None:
    """x = gelu(x), in place; gelu as in `geglu`."""
    _elementwise("gelu", GELU, x, x, 0.0, x)


def relu_squared(x: F32) -> None:
    """x = max(x, 0)^2, in place."""
    _elementwise("relu_squared", RELU_SQUARED, x, x, 0.0, x)


def add(x: F32, y: F32, out: F32) -> None:
    """out = x + y; float32 of one shape. out may be x or y."""
    _elementwise("add", ADD, x, y, 0.0, out)


def add_row(x: F32, row: F32) -> None:
    """x = x + row, in place: adds row float32 (N,) to each row of x float32 (T, N)."""
    _on_rows("add_row", ADD, x, row, x.shape[-1])


def multiply_row(x: F32, row: F32) -> None:
    """x = x * row, in place: multiplies each row of x float32 (T, N) by row float32 (N,)."""
    _on_rows("multiply_row", MULTIPLY, x, row, x.shape[-1])


def scale_rows(x: F32, factors: F32) -> None:
    """x = x * factors, in place: multiplies row t of x float32 (T, N) by factors[t]."""
    _on_rows("scale_rows", SCALE, x, factors, len(x))


def scale(x: F32, factor: float) -> None:
    """x = x * factor, in place."""
    _elementwise("scale", SCALE, x, x, factor, x)


def softcap(x: F32, cap: float) -> None:
    """x = cap * tanh(x / cap), in place; cap > 0."""
    if not cap > 0:
        raise OpsError(f"softcap: cap is {cap}, expected a positive number")
    _elementwise("softcap", SOFTCAP, x, x, cap, x)
