"""The tiny models of `make_models`: a configuration class of transformers, and its arguments.

Those of hybrids are in `hybrids_to_make`.
"""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 48}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
}
GPT_OSS = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_parameters": YARN,
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 300,
}
DEEPSEEK = EXPERTS | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3moe": (
        "Qwen3MoeConfig",
        SIZES | EXPERTS | {"num_experts": 5, "head_dim": 32, "norm_topk_prob": True},
    ),
    "laguna": (
        "LagunaConfig",
        SIZES
        | SHARED
        | {
            "num_hidden_layers": 5,
            "head_dim": 32,
            "num_experts": 5,
            "num_attention_heads_per_layer": [4, 8, 8, 8, 4],
            "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
            "sliding_window": 8,
            "moe_routed_scaling_factor": 2.5,
            "gating": True,
            "rope_parameters": {
                "full_attention": YARN | {"partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "laguna-whole": (
        "LagunaConfig",
        SIZES
        | SHARED
        | {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "num_experts": 5,
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            "sliding_window": 0,
            "gating": True,
        },
    ),
    "gpt-oss": ("GptOssConfig", SIZES | GPT_OSS),
    "gpt-oss-mxfp4": ("GptOssConfig", SIZES | GPT_OSS),
    "gemma4": (
        "Gemma4TextConfig",
        SIZES
        | GEMMA4
        | {
            "hidden_size_per_layer_input": 16,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-31b": (
        "Gemma4TextConfig",
        SIZES
        | GEMMA4
        | {
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "gemma4-experts": (
        "Gemma4TextConfig",
        SIZES
        | GEMMA4
        | {
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "mixtral": (
        "MixtralConfig",
        SIZES | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "olmoe": ("OlmoeConfig", SIZES | {"num_experts": 5, "num_experts_per_tok": 2}),
    "granitemoe": (
        "GraniteMoeConfig",
        SIZES
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.15,
            "logits_scaling": 4.0,
        },
    ),
    "granitemoe-shared": (
        "GraniteMoeSharedConfig",
        SIZES
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "attention_multiplier": 0.15,
        },
    ),
    "glm4moe": (
        "Glm4MoeConfig",
        SIZES
        | EXPERTS
        | {
            "num_hidden_layers": 3,
            "head_dim": 32,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
        },
    ),
    "deepseek3": (
        "DeepseekV3Config",
        SIZES
        | DEEPSEEK
        | {
            "scoring_func": "sigmoid",
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek2-lite": (
        "DeepseekV2Config",
        SIZES
        | DEEPSEEK
        | {
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "glm4-lite": (
        "Glm4MoeLiteConfig",
        SIZES | DEEPSEEK | {"n_group": 1, "topk_group": 1, "scoring_func": "sigmoid"},
    ),
    "ernie4_5-moe": (
        "Ernie4_5_MoeConfig",
        SIZES
        | {
            "num_hidden_layers": 3,
            "head_dim": 32,
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "qwen2moe": ("Qwen2MoeConfig", SIZES | SHARED | {"num_experts": 5}),
    "bamba": (
        "BambaConfig",
        SIZES
        | {
            "num_hidden_layers": 3,
            "attn_layer_indices": [1],
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 24,
            "rope_theta": 5000.0,
        },
    ),
}
