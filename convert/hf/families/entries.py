"""The part of the table for mixtures of experts and hybrids."""

from __future__ import annotations

from dataclasses import replace

from ..architecture import HFArchitecture, defaults, routed
from ..keys import UNIT_SCALES
from . import deepseek, experts, falcon_h1, gemma4, gpt_oss, hybrids, laguna, mamba2, nemotron_h

_QWEN_NORMS = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
_DELTA = {
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
_QWEN35 = HFArchitecture(
    "qwen35",
    hybrids.add_qwen35,
    fixed=hybrids.GATED,
    norm_shift=1.0,
    shifted=_QWEN_NORMS,
    rewrite=hybrids.cyclic_delta_nets,
    defaults=defaults(32_768, 10_000.0, **_DELTA | {"num_key_value_heads": 4}),
)
_QWEN35MOE = replace(
    _QWEN35,
    name="qwen35moe",
    add_keys=hybrids.add_qwen35moe,
    defaults=defaults(32_768, 10_000.0, **_DELTA, **routed(256, 8, 512, 512)),
)
_GRANITE = HFArchitecture(
    "granitemoe",
    experts.add_granite_moe,
    permuted=True,
    rewrite=experts.split_granite,
    defaults=defaults(
        2048,
        10_000.0,
        1e-6,
        num_local_experts=8,
        num_experts_per_tok=2,
        **UNIT_SCALES,
    ),
)
_DEEPSEEK = {
    "rms_norm_eps": 1e-6,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts_per_tok": 8,
}
_LFM2 = {"norm_eps": 1e-5, "num_key_value_heads": 8, "conv_L_cache": 3, "tie_word_embeddings": True}

ENTRIES = {
    "Qwen3_5ForConditionalGeneration": _QWEN35,
    "Qwen3_5ForCausalLM": _QWEN35,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35MOE,
    "Qwen3_5MoeForCausalLM": _QWEN35MOE,
    "Qwen3NextForCausalLM": HFArchitecture(
        "qwen3next",
        hybrids.add_qwen3next,
        fixed=hybrids.GATED,
        norm_shift=1.0,
        shifted=_QWEN_NORMS,
        rewrite=hybrids.delta_nets,
        defaults=defaults(
            32_768, 10_000.0, **_DELTA, **routed(512, 10, 512, 512), norm_topk_prob=True
        ),
    ),
    "Qwen3MoeForCausalLM": HFArchitecture(
        "qwen3moe",
        experts.add_qwen_moe,
        rewrite=experts.split,
        defaults=defaults(
            32_768,
            10_000.0,
            1e-6,
            **routed(128, 8, 768),
            num_key_value_heads=4,
            norm_topk_prob=False,
        ),
    ),
    "Qwen2MoeForCausalLM": HFArchitecture(
        "qwen2moe",
        experts.add_qwen_moe,
        rewrite=experts.split,
        defaults=defaults(
            32_768, 10_000.0, 1e-6, **routed(60, 4, 1408, 5632), norm_topk_prob=False
        ),
    ),
    "GptOssForCausalLM": gpt_oss.ENTRY,
    "Gemma4ForCausalLM": gemma4.ENTRY,
    "Gemma4ForConditionalGeneration": gemma4.ENTRY,
    "MixtralForCausalLM": HFArchitecture(
        "llama",
        experts.add_mixtral,
        permuted=True,
        rewrite=experts.split,
        defaults=defaults(
            131_072,
            1_000_000.0,
            1e-5,
            num_key_value_heads=8,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
    ),
    "Lfm2ForCausalLM": HFArchitecture(
        "lfm2",
        hybrids.add_lfm2,
        fixed={"conv_bias": False},
        rewrite=hybrids.short_convolutions,
        defaults=defaults(
            128_000,
            1_000_000.0,
            **_LFM2,
            block_auto_adjust_ff_dim=True,
            block_ffn_dim_multiplier=1.0,
            block_multiple_of=256,
        ),
    ),
    "Lfm2MoeForCausalLM": HFArchitecture(
        "lfm2moe",
        hybrids.add_lfm2moe,
        fixed={"conv_bias": False, "routed_scaling_factor": 1},
        rewrite=hybrids.short_convolutions,
        defaults=defaults(
            128_000,
            1_000_000.0,
            **_LFM2,
            **routed(32, 4, 1792),
            num_dense_layers=2,
            norm_topk_prob=True,
        ),
    ),
    "OlmoeForCausalLM": HFArchitecture(
        "olmoe",
        experts.add_olmoe,
        fixed={"clip_qkv": None},
        rewrite=experts.split,
        defaults=defaults(
            4096, 10_000.0, 1e-5, num_experts=64, num_experts_per_tok=8, norm_topk_prob=False
        ),
    ),
    "GraniteMoeForCausalLM": _GRANITE,
    "GraniteMoeSharedForCausalLM": _GRANITE,
    "GraniteMoeHybridForCausalLM": replace(
        _GRANITE,
        name="granitehybrid",
        add_keys=mamba2.add_granite4,
        choose=mamba2.choose_granite,
        rewrite=mamba2.granite_hybrids,
        defaults={**_GRANITE.defaults, **mamba2.DEFAULTS, "shared_intermediate_size": 1024},
    ),
    "BambaForCausalLM": HFArchitecture(
        "granitehybrid",
        mamba2.add_bamba,
        permuted=True,
        rewrite=mamba2.scans,
        defaults=defaults(
            262_144,
            10_000.0,
            1e-5,
            **mamba2.DEFAULTS,
            num_key_value_heads=8,
            partial_rotary_factor=0.5,
        ),
    ),
    "NemotronHForCausalLM": nemotron_h.ENTRY,
    "FalconH1ForCausalLM": falcon_h1.ENTRY,
    "Glm4MoeForCausalLM": HFArchitecture(
        "glm4moe",
        experts.add_glm4_moe,
        rewrite=experts.split,
        defaults=defaults(
            131_072,
            10_000.0,
            1e-5,
            head_dim=128,
            num_key_value_heads=8,
            partial_rotary_factor=0.5,
            n_routed_experts=128,
            num_experts_per_tok=8,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            moe_intermediate_size=1408,
            routed_scaling_factor=1.0,
            norm_topk_prob=True,
        ),
    ),
    "DeepseekV2ForCausalLM": HFArchitecture(
        "deepseek2",
        deepseek.add_softmax,
        fixed=deepseek.FIXED,
        rewrite=deepseek.tensors,
        defaults=defaults(
            2048,
            10_000.0,
            **_DEEPSEEK,
            n_routed_experts=64,
            n_shared_experts=2,
            first_k_dense_replace=0,
            moe_intermediate_size=1407,
            routed_scaling_factor=1.0,
            norm_topk_prob=False,
        ),
    ),
    "DeepseekV3ForCausalLM": HFArchitecture(
        "deepseek2",
        deepseek.add_sigmoid,
        fixed=deepseek.FIXED,
        rewrite=deepseek.tensors,
        defaults=defaults(
            4096,
            10_000.0,
            **_DEEPSEEK,
            n_routed_experts=256,
            n_shared_experts=1,
            n_group=8,
            topk_group=4,
            first_k_dense_replace=3,
            moe_intermediate_size=2048,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
        ),
    ),
    "Glm4MoeLiteForCausalLM": HFArchitecture(
        "deepseek2",
        deepseek.add_sigmoid,
        fixed=deepseek.FIXED,
        rewrite=deepseek.tensors,
        defaults=defaults(
            202_752,
            10_000.0,
            **_DEEPSEEK
            | {
                "rms_norm_eps": 1e-5,
                "q_lora_rank": 768,
                "qk_nope_head_dim": 192,
                "v_head_dim": 256,
                "num_experts_per_tok": 4,
            },
            n_routed_experts=64,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            moe_intermediate_size=1536,
            routed_scaling_factor=1.8,
            norm_topk_prob=True,
        ),
    ),
    "LagunaForCausalLM": laguna.ENTRY,
    "Ernie4_5_MoeForCausalLM": HFArchitecture(
        "ernie4_5-moe",
        experts.add_ernie_moe,
        fixed={"moe_layer_interval": 1},
        rewrite=experts.split,
        defaults=defaults(
            131_072,
            500_000.0,
            1e-5,
            num_key_value_heads=4,
            moe_num_experts=64,
            moe_k=6,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_intermediate_size=1536,
            tie_word_embeddings=True,
        ),
    ),
}
"""By the names of config.json's `architectures`."""
