"""Recurrent layers in plain NumPy, one token at a time, in float64."""

import numpy as np
from numpy.typing import NDArray

from ..arrays import F64
from ..recurrent.layout import DeltaHeads
from .pointwise import rms_norm_reference, silu_reference

Array = NDArray[np.floating]


def short_conv_reference(
    x: Array, weight: Array, state: Array, bias: Array | None = None, silu: bool = False
) -> tuple[F64, Array]:
    """(y, the new state): y[t] = sum of weight (K, C) times the last K rows up to t, plus bias."""
    width = len(weight)
    rows = np.concatenate([state, x]).astype(np.float64)
    y: F64 = np.array([(weight * rows[t : t + width]).sum(0) for t in range(len(x))])
    y = y.reshape(x.shape) + (0 if bias is None else bias)
    return silu_reference(y) if silu else y, rows[len(x) :]


def gated_short_conv_reference(bcx: Array, weight: Array, state: Array) -> tuple[F64, Array]:
    """(c * conv(b * x), the new state) for rows of b, c and x."""
    b, c, x = np.split(bcx.astype(np.float64), 3, axis=1)
    y, state = short_conv_reference(b * x, weight, state)
    return c * y, state


def unpack_state(state: Array, heads: DeltaHeads) -> F64:
    """S (value heads, key_dim, value_dim) of `DeltaHeads.state_shape`."""
    rows = state.astype(np.float64).transpose(0, 2, 1, 3)
    return rows.reshape(heads.n_values, heads.key_dim, -1)[..., : heads.value_dim]


def pack_state(states: F64, heads: DeltaHeads) -> F64:
    """`unpack_state`'s inverse."""
    _, blocks, _, columns = shape = heads.state_shape
    rows = np.zeros((heads.n_values, heads.key_dim, blocks * columns))
    rows[..., : heads.value_dim] = states
    packed: F64 = rows.reshape(len(rows), heads.key_dim, blocks, columns).transpose(0, 2, 1, 3)
    assert packed.shape == shape
    return packed


def _unit(x: F64, eps: float) -> F64:
    unit: F64 = x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)
    return unit


def delta_rule_reference(
    qkv: Array, b: Array, a: Array, gates: tuple[Array, Array], states: F64, heads: DeltaHeads
) -> tuple[F64, F64]:
    """(out (T, H_v, D_v), new states (H_v, D_k, D_v)); gates: rates and bias. eps is 1e-6."""
    n_qk, states = heads.n_keys * heads.key_dim, states.copy()
    q, k, v = np.split(qkv.astype(np.float64), [n_qk, 2 * n_qk], axis=1)
    q, k = (_unit(x.reshape(len(x), heads.n_keys, -1), 1e-6) for x in (q, k))
    v = v.reshape(len(v), heads.n_values, -1)
    rates, bias = gates
    decay = np.exp(rates.astype(np.float64) * np.logaddexp(0, a.astype(np.float64) + bias))
    beta = np.exp(-np.logaddexp(0, -b.astype(np.float64)))
    out = np.empty(v.shape)
    for h in range(heads.n_values):
        j = h % heads.n_keys if heads.cyclic else h // (heads.n_values // heads.n_keys)
        for t in range(len(v)):
            s = decay[t, h] * states[h]
            s += beta[t, h] * np.outer(k[t, j], v[t, h] - s.T @ k[t, j])
            states[h], out[t, h] = s, s.T @ q[t, j] / np.sqrt(heads.key_dim)
    return out, states


def gated_rms_norm_reference(x: Array, weight: Array, gate: Array, eps: float) -> F64:
    """rms_norm(x) * silu(gate)."""
    normed: F64 = rms_norm_reference(x, weight, eps) * silu_reference(gate)
    return normed
