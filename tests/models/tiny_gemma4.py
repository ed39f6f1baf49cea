"""The tensors of tiny gemma4 models."""

from __future__ import annotations

import numpy as np

from .tiny_cases import PATTERN, Tiny

MEANS = {"attn_q_norm": 0.5, "attn_k_norm": 0.5}
"""Scores are not scaled: with a mean of 1 one key would have nearly all of a query's weight."""

Shapes = dict[str, tuple[int, ...]]


def whole_shapes(case: Tiny) -> dict[str, tuple[tuple[int, ...], float]]:
    """Shapes and deviations of the tensors that belong to no layer, beside those of all models."""
    n = case.keys.get("embedding_length_per_layer_input", 0)
    if not n:
        return {}
    n_all = n * case.n_layers
    return {
        "per_layer_token_embd.weight": ((case.n_vocab, n_all), n**-0.5),
        "per_layer_model_proj.weight": ((n_all, case.n_embd), 1.0),
        "per_layer_proj_norm.weight": ((n,), 0.2),
    }


def factors(n_half: int) -> np.ndarray:
    """Divisors of frequencies: a quarter of the pairs rotates, the others stand still."""
    return np.where(np.arange(n_half) < n_half // 4, 1.0, 1e30).astype(np.float32)


def shapes(case: Tiny, layer: int) -> Shapes:
    """Matrices and norms of one block."""
    d, keys = case.n_embd, case.keys
    kv_heads = keys.get("attention.head_count_kv", [case.n_kv_heads] * case.n_layers)
    head_dim = 16 if keys[PATTERN][layer] else case.head_dim
    n_q, n_kv = case.n_heads * head_dim, kv_heads[layer] * head_dim
    f = keys.get("feed_forward_length", [case.n_ff] * case.n_layers)[layer]
    result: Shapes = {"attn_norm": (d,), "attn_q": (n_q, d), "attn_output": (d, n_q)}
    result |= {"attn_q_norm": (head_dim,), "post_attention_norm": (d,)}
    if layer < case.n_layers - keys.get("attention.shared_kv_layers", 0):
        result |= {"attn_k": (n_kv, d), "attn_k_norm": (head_dim,)}
        if keys[PATTERN][layer] or "attention.shared_kv_layers" in keys:
            result["attn_v"] = (n_kv, d)
    result |= {"ffn_norm": (d,), "post_ffw_norm": (d,), "layer_output_scale": (1,)}
    result |= {"ffn_gate": (f, d), "ffn_up": (f, d), "ffn_down": (d, f)}
    if n := keys["embedding_length_per_layer_input"]:
        result |= {"inp_gate": (n, d), "proj": (d, n), "post_norm": (d,)}
    if "expert_count" in keys:
        n, f = keys["expert_count"], keys["expert_feed_forward_length"]
        result |= {"ffn_gate_inp": (n, d), "ffn_gate_inp.scale": (d,), "pre_ffw_norm_2": (d,)}
        result |= {"post_ffw_norm_1": (d,), "post_ffw_norm_2": (d,)}
        result |= {"ffn_gate_up_exps": (n, 2 * f, d), "ffn_down_exps": (n, d, f)}
        result["ffn_down_exps.scale"] = (n,)
    return result
