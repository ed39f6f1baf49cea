"""The forward pass of text encoders in plain NumPy, in float64, text by text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvarn.ops.arrays import F64

from .tiny_text_encoders import EPS, TinyEncoder, tensors


def hidden_states(case: TinyEncoder, ids: list[int], types: list[int]) -> F64:
    """float64 (T, D): hidden states of one text."""
    w = {name: value.astype(np.float64) for name, value in tensors(case).items()}
    modern, n = case.architecture == "modern-bert", len(ids)

    def norm(x: F64, name: str) -> F64:
        centred = x if case.gemma else x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
        return scaled * w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)

    def linear(x: F64, name: str) -> F64:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    x = w["token_embd.weight"][ids]
    if case.gemma:
        return _gemma_states(case, w, x, norm, linear)
    if not modern:
        x = x + w["token_types.weight"][types]
    if case.architecture == "bert":
        x = x + w["position_embd.weight"][:n]
    x = norm(x, "token_embd_norm")
    for i in range(case.n_layers):
        p = f"blk.{i}"
        source = norm(x, f"{p}.attn_norm") if modern and i else x
        mixed = _attend(case, source, linear, p, case.is_windowed(i))
        x = x + linear(mixed, f"{p}.attn_output")
        if not modern:
            x = norm(x, f"{p}.attn_output_norm")
        source = norm(x, f"{p}.ffn_norm") if modern else x
        if f"{p}.ffn_gate_inp.weight" in w:
            x = x + _experts(w, source, p)
            x = norm(x, f"{p}.layer_output_norm")
            continue
        up = linear(source, f"{p}.ffn_up")
        if modern:
            gate, up = np.split(up, 2, axis=1)
            up = (_silu if case.activation == "silu" else _gelu)(gate) * up
        elif case.biased:
            up = _gelu(up)
        else:
            up = _silu(linear(source, f"{p}.ffn_gate")) * up
        x = x + linear(up, f"{p}.ffn_down")
        if not modern:
            x = norm(x, f"{p}.layer_output_norm")
    return norm(x, "output_norm") if modern else x


def _silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


def _experts(w: dict[str, F64], x: F64, prefix: str) -> F64:
    """The two experts with the largest probabilities, weighted by these."""
    logits = x @ w[f"{prefix}.ffn_gate_inp.weight"].T
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    out = np.zeros_like(x) + w.get(f"{prefix}.ffn_exps.bias", 0.0)
    for t, row in enumerate(shares):
        for e in np.argsort(-row)[:2]:
            hidden = _gelu(w[f"{prefix}.ffn_up_exps.weight"][e] @ x[t])
            out[t] += row[e] * (w[f"{prefix}.ffn_down_exps.weight"][e] @ hidden)
    return out


def _gemma_states(case: TinyEncoder, w: dict[str, F64], x: F64, norm: Any, linear: Any) -> F64:
    x = x * math.sqrt(case.n_embd)
    for i in range(case.n_layers):
        p = f"blk.{i}"
        source = norm(x, f"{p}.attn_norm")
        mixed = _attend(case, source, linear, p, case.is_windowed(i), norm)
        x = x + norm(linear(mixed, f"{p}.attn_output"), f"{p}.post_attention_norm")
        source = norm(x, f"{p}.ffn_norm")
        up = _gelu(linear(source, f"{p}.ffn_gate")) * linear(source, f"{p}.ffn_up")
        x = x + norm(linear(up, f"{p}.ffn_down"), f"{p}.post_ffw_norm")
    return norm(x, "output_norm")


def scores(case: TinyEncoder, first: F64) -> F64:
    """float64 (labels,): what the classifier makes of one hidden state."""
    w = {name: value.astype(np.float64) for name, value in tensors(case).items()}
    if case.dense:
        first = np.tanh(w["cls.weight"] @ first + w["cls.bias"])
    return w["cls.output.weight"] @ first + w["cls.output.bias"]


def _attend(
    case: TinyEncoder, x: F64, linear: Any, prefix: str, windowed: bool, norm: Any = None
) -> F64:
    n, heads, e = len(x), case.n_heads, case.e
    if f"{prefix}.attn_q.weight" in tensors(case):
        q, k, v = (linear(x, f"{prefix}.attn_{part}") for part in "qkv")
    else:
        q, k, v = np.split(linear(x, f"{prefix}.attn_qkv"), 3, axis=1)
    q, k, v = (part.reshape(n, -1, e) for part in (q, k, v))
    if norm is not None:
        q, k = norm(q, f"{prefix}.attn_q_norm"), norm(k, f"{prefix}.attn_k_norm")
    if case.architecture != "bert":
        base = 10_000.0 if windowed else 1000.0
        q, k = _rotated(q, base), _rotated(k, base)
    out = np.empty((n, heads, e))
    for h in range(heads):
        j = h * case.kv // heads
        for t in range(n):
            score = k[:, j] @ q[t, h] / math.sqrt(e)
            if windowed:
                score[np.abs(np.arange(n) - t) > case.window // 2] = -np.inf
            weights = np.exp(score - score.max())
            out[t, h] = weights / weights.sum() @ v[:, j]
    return out.reshape(n, -1)


def _rotated(x: F64, base: float) -> F64:
    n, _, e = x.shape
    angles = np.arange(n)[:, None, None] * base ** (-np.arange(0, e, 2) / e)
    a, b = x[..., : e // 2], x[..., e // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _gelu(x: F64) -> F64:
    """llama.cpp's, by tanh."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
