"""The checking wrappers of the pointwise operations."""

import numpy as np
from numpy.typing import NDArray

from ..errors import OpsError
from ..threads import n_threads
from .elementwise import ADD, GEGLU, SCALE, SOFTCAP, SWIGLU, elementwise_kernel
from .norms import norm_kernel
from .rotary import rope_kernel

F32 = NDArray[np.float32]
_FLOAT = np.dtype(np.float32)
_STYLES = {"normal": 0, "neox": 1}


def _fail(what: str, x: F32, wanted: str) -> OpsError:
    found = f"{x.dtype} {x.shape}" + ("" if x.flags.c_contiguous else ", not contiguous")
    return OpsError(f"{what} is {found}, expected contiguous float32 {wanted}")


def _check(what: str, x: F32, shape: tuple[int, ...]) -> None:
    if x.shape != shape or x.dtype != _FLOAT or not x.flags.c_contiguous:
        raise _fail(what, x, str(shape))


def _norm(op: str, x: F32, weight: F32, bias: F32 | None, eps: float, out: F32) -> None:
    shape = x.shape
    if len(shape) != 2:
        raise _fail(f"{op}: x", x, "(rows, columns)")
    _check(f"{op}: x", x, shape)
    _check(f"{op}: weight", weight, shape[1:])
    _check(f"{op}: out", out, shape)
    address = 0
    if bias is not None:
        _check(f"{op}: bias", bias, shape[1:])
        address = bias.ctypes.data
    norm_kernel(x, weight, address, float(eps), op == "layer_norm", out, n_threads())


def rms_norm(x: F32, weight: F32, eps: float, out: F32) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, for each row.

    x, out float32 (T, D), or (T * heads, E) for a norm per head; weight (D,). out may be x.
    """
    _norm("rms_norm", x, weight, None, eps, out)


def layer_norm(x: F32, weight: F32, bias: F32 | None, eps: float, out: F32) -> None:
    """out = (x - mean) / sqrt(variance + eps) * weight + bias, for each row.

    x, out float32 (T, D); weight (D,), bias (D,) or None. out may be x.
    """
    _norm("layer_norm", x, weight, bias, eps, out)


def rope(x: F32, cos_sin: F32, style: str) -> None:
    """Rotate the first n_rot elements of each head, in place: (a, b) to (a c - b s, a s + b c).

    x float32 (T, heads, E); cos_sin float32 (T, n_rot), n_rot <= E: n_rot/2 cosines, then n_rot/2
    sines, for these tokens' positions. Pair i is (2i, 2i+1) in style "normal" and (i, i + n_rot/2)
    in style "neox".
    """
    shape = x.shape
    if len(shape) != 3:
        raise _fail("rope: x", x, "(tokens, heads, head_dim)")
    _check("rope: x", x, shape)
    table = cos_sin.shape
    if len(table) != 2 or table[1] % 2 or table[1] > shape[2]:
        raise _fail("rope: table", cos_sin, f"({shape[0]}, even number up to {shape[2]})")
    _check("rope: table", cos_sin, (shape[0], table[1]))
    if style not in _STYLES:
        raise OpsError(f"rope: style is {style!r}, expected 'normal' or 'neox'")
    rope_kernel(x, cos_sin, _STYLES[style], n_threads())


def _elementwise(name: str, op: int, x: F32, y: F32, c: float, out: F32) -> None:
    shape = x.shape
    _check(f"{name}: first operand", x, shape)
    if y is not x:
        _check(f"{name}: second operand", y, shape)
    if out is not x:
        _check(f"{name}: out", out, shape)
    elementwise_kernel(op, x.reshape(-1), y.reshape(-1), float(c), out.reshape(-1), n_threads())


def swiglu(gate: F32, up: F32, out: F32) -> None:
    """out = gate / (1 + exp(-gate)) * up; float32 (T, F). out may be gate or up."""
    _elementwise("swiglu", SWIGLU, gate, up, 0.0, out)


def geglu(gate: F32, up: F32, out: F32) -> None:
    """out = gelu(gate) * up, gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    float32 (T, F). out may be gate or up. Source: ggml_gelu, without its table in f16.
    """
    _elementwise("geglu", GEGLU, gate, up, 0.0, out)


def add(x: F32, y: F32, out: F32) -> None:
    """out = x + y; float32 of one shape. out may be x or y."""
    _elementwise("add", ADD, x, y, 0.0, out)


def scale(x: F32, factor: float) -> None:
    """x = x * factor, in place."""
    _elementwise("scale", SCALE, x, x, factor, x)


def softcap(x: F32, cap: float) -> None:
    """x = cap * tanh(x / cap), in place; cap > 0."""
    if not cap > 0:
        raise OpsError(f"softcap: cap is {cap}, expected a positive number")
    _elementwise("softcap", SOFTCAP, x, x, cap, x)


def warm() -> None:
    """Compile every pointwise kernel, or load it from the cache."""
    x = np.zeros((1, 16), np.float32)
    rms_norm(x, x[0], 1e-5, x)
    rope(x.reshape(1, 1, 16), x, "normal")
    swiglu(x, x, x)
