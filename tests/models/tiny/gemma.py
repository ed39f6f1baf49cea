"""Tiny models of the Gemma family, and the tensors of Gemma 4."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import EXPERTS, PATTERN, SWA, Tiny

MEANS = {"attn_q_norm": 0.5, "attn_k_norm": 0.5}
"""Scores are not scaled: with a mean of 1 one key would have nearly all of a query's weight."""

Shapes = dict[str, tuple[int, ...]]


def _keys4(pattern: list[bool], n_embd_per_layer: int = 0, n_rot: int = 16) -> dict[str, Any]:
    """Keys of heads of 16 numbers in layers with a window."""
    return {
        SWA: 12,
        PATTERN: pattern,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count_swa": n_rot,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "embedding_length_per_layer_input": n_embd_per_layer,
        "final_logit_softcapping": 30.0,
    }


CASES = (
    Tiny("gemma2", "gemma2", n_layers=4, head_dim=32, tied=True, keys={SWA: 16}),
    Tiny(
        "gemma2-caps",
        "gemma2",
        n_heads=8,
        head_dim=8,
        tied=True,
        keys={SWA: 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    # The number of layers at which attention is scaled by the embedding's size.
    Tiny(
        "gemma2-46",
        "gemma2",
        n_layers=46,
        n_embd=24,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        n_ff=32,
        tied=True,
        keys={SWA: 20},
    ),
    Tiny(
        "gemma3",
        "gemma3",
        n_layers=7,
        head_dim=32,
        tied=True,
        keys={
            SWA: 16,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Tiny(
        "gemma3-pattern",
        "gemma3",
        n_layers=4,
        keys={SWA: 7, PATTERN: [False, True, True, False], "rope.freq_base_swa": 3e4},
    ),
    Tiny("gemma3-dense", "gemma3", n_heads=2, n_kv_heads=1, head_dim=256),
    # Windowed layers have KV heads and a head size of their own; the others use keys as values.
    Tiny(
        "gemma4",
        "gemma4",
        n_layers=4,
        head_dim=80,
        tied=True,
        keys=_keys4([True, True, False, False]) | {"attention.head_count_kv": [4, 4, 1, 1]},
    ),
    # The last layers read keys and values of earlier ones, and each has embeddings of its own.
    Tiny(
        "gemma4-shared",
        "gemma4",
        n_layers=6,
        n_heads=8,
        n_kv_heads=1,
        head_dim=32,
        tied=True,
        keys=_keys4([True, False] * 3, n_embd_per_layer=12, n_rot=8)
        | {"attention.shared_kv_layers": 2, "feed_forward_length": [96] * 4 + [101] * 2},
    ),
    Tiny(
        "gemma4-experts",
        "gemma4",
        head_dim=512,
        tied=True,
        keys=_keys4([True, True, False])
        | EXPERTS
        | {"expert_feed_forward_length": 40, "attention.head_count_kv": [2, 2, 1]},
    ),
    Tiny("gemma", "gemma", n_heads=8, n_kv_heads=1, head_dim=256, tied=True),
)


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
