"""Norms, rope and activations in plain NumPy, in float64."""

import numpy as np
from numpy.typing import NDArray

from ..arrays import F64

Array = NDArray[np.floating]


def rms_norm_reference(x: Array, weight: Array, eps: float) -> F64:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm_reference(x: Array, weight: Array, bias: Array | None, eps: float) -> F64:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""
    x = x.astype(np.float64)
    x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


def add_rms_norm_reference(x: Array, branch: Array, weight: Array, eps: float) -> tuple[Array, F64]:
    """(x + branch, rms_norm of it)."""
    total = x + branch
    return total, rms_norm_reference(total, weight, eps)


def add_layer_norm_reference(
    x: Array, branch: Array, weight: Array, bias: Array | None, eps: float
) -> tuple[Array, F64]:
    """(x + branch, layer_norm of it)."""
    total = x + branch
    return total, layer_norm_reference(total, weight, bias, eps)


def rope_reference(x: Array, cos_sin: Array, style: str) -> F64:
    """Rotate pairs of the first n_rot elements of each head; x (T, heads, E).

    cos_sin (T, n_rot): n_rot/2 cosines, then n_rot/2 sines. Pair i is (2i, 2i+1) for "normal" and
    (i, i + n_rot/2) for "neox": (a, b) becomes (a cos - b sin, a sin + b cos).
    """
    half = cos_sin.shape[-1] // 2
    cos, sin = (cos_sin[:, None, s].astype(np.float64) for s in (slice(half), slice(half, None)))
    first = slice(0, 2 * half, 2) if style == "normal" else slice(half)
    second = slice(1, 2 * half, 2) if style == "normal" else slice(half, 2 * half)
    y: F64 = x.astype(np.float64)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y


def silu_reference(x: Array) -> F64:
    """x / (1 + exp(-x))."""
    wide: F64 = x.astype(np.float64)
    return wide * np.exp(-np.logaddexp(0, -wide))


def gelu_reference(x: Array) -> F64:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): ggml's gelu without its f16 table."""
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relu_squared_reference(x: Array) -> F64:
    """max(x, 0)^2."""
    return np.square(np.maximum(x.astype(np.float64), 0.0))


def swiglu_reference(gate: Array, up: Array) -> F64:
    """silu(gate) * up."""
    return silu_reference(gate) * up


def geglu_reference(gate: Array, up: Array) -> F64:
    """gelu(gate) * up."""
    return gelu_reference(gate) * up


def clamped_swiglu_reference(gate: Array, up: Array) -> F64:
    """g / (1 + exp(-1.702 g)) (u + 1), g = min(gate, 7), u = up clamped to -7 … 7."""
    g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    return np.asarray(g * np.exp(-np.logaddexp(0, -1.702 * g)) * (u + 1))


def sigmoid_gate_reference(x: Array, gate: Array) -> F64:
    """x / (1 + exp(-gate))."""
    return np.asarray(x * np.exp(-np.logaddexp(0, -gate.astype(np.float64))), np.float64)


def softplus_gate_reference(x: Array, gate: Array) -> F64:
    """x log(1 + exp(gate))."""
    return np.asarray(x * np.logaddexp(0, gate.astype(np.float64)), np.float64)


def softcap_reference(x: Array, cap: float) -> F64:
    """cap * tanh(x / cap)."""
    return cap * np.tanh(x.astype(np.float64) / cap)
