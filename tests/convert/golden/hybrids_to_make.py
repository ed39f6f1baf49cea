"""The tiny models of `make_models` in families with layers that carry states."""

from __future__ import annotations

from typing import Any

from tests.convert.golden.models_to_make import EXPERTS, SHARED, SIZES

# Six value heads for two key heads: their order matters.
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
MROPE = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.5,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}
LFM2 = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "tie_word_embeddings": True,
}
GRANITE4 = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.15,
    "logits_scaling": 4.0,
}
NEMOTRON_H = SIZES | {
    "head_dim": 32,
    "mamba_num_heads": 6,
    "mamba_head_dim": 32,
    "n_groups": 3,
    "ssm_state_size": 24,
}
FALCON_H1 = SIZES | {
    "head_dim": 32,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "mlp_multipliers": [0.9, 0.6],
    "key_multiplier": 0.4,
    "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 0.7,
    "ssm_multipliers": [0.4, 0.6, 0.8, 1.2, 1.4],
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.3,
}
QWEN35MOE = {
    "text_config": SIZES | DELTA | SHARED | {"num_experts": 5, "rope_parameters": MROPE},
    "vision_config": VISION,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen35": (
        "Qwen3_5Config",
        {
            "text_config": SIZES | DELTA | {"rope_parameters": MROPE},
            "vision_config": VISION,
        },
    ),
    "qwen35-text": ("Qwen3_5TextConfig", SIZES | DELTA | {"tie_word_embeddings": True}),
    "qwen35moe": ("Qwen3_5MoeConfig", QWEN35MOE),
    "qwen35moe-fused": ("Qwen3_5MoeConfig", QWEN35MOE),
    "qwen3next": (
        "Qwen3NextConfig",
        SIZES | DELTA | SHARED | {"num_experts": 5, "partial_rotary_factor": 0.25},
    ),
    "lfm2": ("Lfm2Config", SIZES | LFM2 | {"block_multiple_of": 32, "intermediate_size": 150}),
    "lfm2moe": (
        "Lfm2MoeConfig",
        SIZES
        | LFM2
        | EXPERTS
        | {"num_experts": 5, "num_dense_layers": 1, "routed_scaling_factor": 1.0},
    ),
    "granitehybrid": (
        "GraniteMoeHybridConfig",
        SIZES
        | GRANITE4
        | {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
    ),
    "granitehybrid-dense": (
        "GraniteMoeHybridConfig",
        SIZES
        | GRANITE4
        | {
            "mamba_n_groups": 2,
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "tie_word_embeddings": True,
        },
    ),
    "granite4": (
        "GraniteMoeHybridConfig",
        SIZES
        | GRANITE4
        | {
            "layer_types": ["full_attention"] * 3,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "rope",
            "tie_word_embeddings": True,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        NEMOTRON_H | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    ),
    "nemotron_h_moe": (
        "NemotronHConfig",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 2.5,
        },
    ),
    "nemotron_h_moe-latent": (
        "NemotronHConfig",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "moe_latent_size": 40,
        },
    ),
    "falcon-h1": ("FalconH1Config", FALCON_H1),
    "falcon-h1-normed": (
        "FalconH1Config",
        FALCON_H1
        | {
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
        },
    ),
}
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    **{
        name: {"layer_types": ["mamba", "attention", "mamba"]}
        for name in ("granitehybrid", "granitehybrid-dense")
    },
    "granite4": {"layer_types": ["attention"] * 3},
    "bamba": {"attn_rotary_emb": 8, "rope_theta": 5000.0, "rope_parameters": None},
    "nemotron_h": {
        "hybrid_override_pattern": "M-*-",
        "layers_block_type": None,
        "num_hidden_layers": 4,
        "rms_norm_eps": 1e-5,
        **dict.fromkeys(("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")),
    },
    "nemotron_h_moe": {
        "hybrid_override_pattern": "ME*E",
        "layers_block_type": None,
        "num_hidden_layers": 4,
    },
}
"""What config.json has in the place of what this version of transformers writes; None: nothing."""
