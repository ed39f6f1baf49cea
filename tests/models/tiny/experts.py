"""Tiny models of attention and routed experts."""

from __future__ import annotations

from .case import EXPERTS, GRANITE, QKV_BIAS, SWA, YARN, YARN_ATTN, Tiny

EXPERT_MATRICES = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
GLM = EXPERTS | {
    "expert_feed_forward_length": 40,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
}

CASES = (
    Tiny("llama-experts", "llama", keys=EXPERTS),
    Tiny(
        "qwen3moe",
        "qwen3moe",
        n_embd=80,
        head_dim=128,
        keys=EXPERTS | {"expert_feed_forward_length": 33},
    ),
    Tiny(
        "qwen2moe",
        "qwen2moe",
        biases=QKV_BIAS,
        keys=EXPERTS | {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 72},
    ),
    Tiny("olmoe", "olmoe", n_heads=8, n_kv_heads=8, head_dim=8, keys=EXPERTS),
    Tiny("granitemoe", "granitemoe", tied=True, keys=GRANITE | EXPERTS),
    Tiny(
        "granitemoe-shared",
        "granitemoe",
        keys=EXPERTS | {"logit_scale": 2.0, "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "glm4moe",
        "glm4moe",
        n_rot=8,
        biases=QKV_BIAS,
        choice_bias=True,
        keys=GLM,
    ),
    # Norms of heads, and a layer at the end that drafts tokens.
    Tiny(
        "glm4moe-norms",
        "glm4moe",
        n_layers=4,
        n_heads=8,
        n_kv_heads=1,
        head_dim=80,
        head_norm=True,
        choice_bias=True,
        keys=GLM | {"nextn_predict_layers": 1, "expert_shared_count": 2},
    ),
    # Layers with a window have other numbers of query heads and rotated pairs, and no YaRN.
    Tiny(
        "laguna",
        "laguna",
        n_layers=5,
        n_kv_heads=1,
        head_dim=32,
        n_rot=16,
        choice_bias=True,
        keys=GLM
        | YARN_ATTN
        | {
            "attention.head_count": [4, 8, 8, 8, 4],
            SWA: 12,
            "rope.freq_base": 5e5,
            "rope.freq_base_swa": 1e4,
            "rope.dimension_count_swa": 32,
            "expert_shared_feed_forward_length": 56,
        },
    ),
    # Without windows; a gate for each element.
    Tiny(
        "laguna-elements",
        "laguna",
        n_heads=2,
        n_kv_heads=2,
        head_dim=80,
        choice_bias=True,
        keys=GLM | {"attention.head_count": [2, 2, 2], "expert_shared_feed_forward_length": 40},
    ),
    Tiny(
        "ernie4_5-moe",
        "ernie4_5-moe",
        n_layers=4,
        choice_bias=True,
        keys=EXPERTS
        | {
            "expert_feed_forward_length": 40,
            "expert_shared_feed_forward_length": 56,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
        },
    ),
    Tiny(
        "gpt-oss",
        "gpt-oss",
        n_layers=4,
        head_dim=32,
        n_kv_heads=1,
        biases=(*QKV_BIAS, "attn_output", "ffn_gate_inp", *EXPERT_MATRICES),
        keys=EXPERTS
        | YARN
        | {"expert_feed_forward_length": 40, SWA: 16, "rope.freq_base": 150_000.0},
    ),
)
