"""config.json of each architecture, and the metadata that llama.cpp's converter makes of it."""

from __future__ import annotations

import math
from typing import Any


def sizes(
    n_layers: int, n_ctx: int, n_embd: int, n_ff: int, n_heads: int, n_kv_heads: int
) -> dict[str, Any]:
    return {
        "block_count": n_layers,
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
    }


def heads(length: int) -> dict[str, Any]:
    return {"attention.key_length": length, "attention.value_length": length}


RMS = "attention.layer_norm_rms_epsilon"
LAYER = "attention.layer_norm_epsilon"


def common(architecture: str, **more: Any) -> dict[str, Any]:
    """A small config.json."""
    return {
        "architectures": [architecture],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        **more,
    }


SMALL = sizes(6, 2048, 256, 512, 8, 4)
LLAMA = SMALL | {RMS: 1e-6, "vocab_size": 1000, "rope.dimension_count": 32} | heads(32)
QWEN = SMALL | {RMS: 1e-6}
GEMMA = SMALL | {RMS: 1e-6} | heads(256)
ORIGINAL = "rope.scaling.original_context_length"

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults of transformers": (
        {k: v for k, v in common("LlamaForCausalLM").items() if k != "num_key_value_heads"},
        LLAMA | {"rope.freq_base": 1e4, "attention.head_count_kv": 8},
    ),
    "llama 3.1": (
        common(
            "LlamaForCausalLM",
            rope_theta=500000.0,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            },
        ),
        LLAMA | {"rope.freq_base": 5e5},
    ),
    "linear, as old files have it": (
        common("LlamaForCausalLM", rope_scaling={"type": "linear", "factor": 4}),
        LLAMA | {"rope.freq_base": 1e4, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mistral with a head of its own": (
        common("MistralForCausalLM", head_dim=64, rope_theta=1000000, sliding_window=None),
        LLAMA | {"rope.freq_base": 1e6, "rope.dimension_count": 64} | heads(64),
    ),
    "ministral 3, as transformers 5 has it": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": common(
                "none",
                model_type="ministral3",
                head_dim=32,
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 1e6,
                    "factor": 16.0,
                    "original_max_position_embeddings": 128,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                },
            )
            | {"architectures": None},
        },
        LLAMA
        | {
            RMS: 1e-5,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0,
            ORIGINAL: 128,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
    ),
    "qwen2 stretched by yarn": (
        common(
            "Qwen2ForCausalLM",
            rope_theta=1e6,
            rope_scaling={
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "attention_factor": 0.9,
            },
        ),
        QWEN
        | {
            "rope.freq_base": 1e6,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            ORIGINAL: 512,
            "rope.scaling.attn_factor": 0.9 / (1.0 + 0.1 * math.log(4.0)),
        },
    ),
    "phi 3.5 with long factors": (
        common(
            "Phi3ForCausalLM",
            original_max_position_embeddings=256,
            sliding_window=262144,
            rope_scaling={
                "type": "longrope",
                "long_factor": [2.0] * 16,
                "short_factor": [1.0] * 16,
            },
        ),
        SMALL
        | {
            ORIGINAL: 256,
            RMS: 1e-5,
            "rope.dimension_count": 32,
            "rope.freq_base": 1e4,
            "attention.sliding_window": 262144,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(256)),
        },
    ),
    "phi 4 mini rotates a part": (
        common("Phi3ForCausalLM", partial_rotary_factor=0.75, sliding_window=None),
        SMALL
        | {
            ORIGINAL: 4096,
            RMS: 1e-5,
            "rope.dimension_count": 24,
            "rope.freq_base": 1e4,
            "attention.sliding_window": 0,
        },
    ),
}
