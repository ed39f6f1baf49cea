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
    "gemma 2": (
        common("Gemma2ForCausalLM", hidden_act="gelu_pytorch_tanh"),
        GEMMA
        | {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.sliding_window": 4096,
        },
    ),
    "gemma 3 that sees, with what its config.json says": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152},
        },
        sizes(34, 131072, 2560, 10240, 8, 4)
        | heads(256)
        | {
            RMS: 1e-6,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "attention.sliding_window": 1024,
        },
    ),
    "gemma 3, as transformers 5 has it": (
        common(
            "Gemma3ForCausalLM",
            layer_types=["sliding_attention"] * 5 + ["full_attention"],
            sliding_window=512,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
            },
        ),
        GEMMA
        | {
            "rope.freq_base": 2e6,
            "rope.freq_base_swa": 3e4,
            "attention.sliding_window": 512,
        },
    ),
    # llama.cpp's converter would leave this out, and its files would mean every sixth layer.
    "gemma 3 with windows elsewhere": (
        common("Gemma3ForCausalLM", sliding_window_pattern=3),
        GEMMA
        | {
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "attention.sliding_window": 4096,
            "attention.sliding_window_pattern": [True, True, False] * 2,
        },
    ),
    "command r7b": (
        common("Cohere2ForCausalLM", logit_scale=0.25, rotary_pct=1.0, rope_theta=50000),
        SMALL
        | heads(32)
        | {
            "rope.freq_base": 5e4,
            "attention.layer_norm_epsilon": 1e-5,
            "logit_scale": 0.25,
            "attention.sliding_window": 4096,
            "vocab_size": 1000,
            "rope.dimension_count": 32,
            "rope.scaling.type": "none",
        },
    ),
    "smollm 3": (
        common("SmolLM3ForCausalLM", no_rope_layers=[1, 1, 1, 0, 1, 1], rope_theta=5e6),
        QWEN | {"rope.freq_base": 5e6, "vocab_size": 1000, "rope.dimension_count": 32},
    ),
    "qwen3 vl, its text part": (
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "text_config": common(
                "none",
                head_dim=32,
                rope_scaling={"mrope_section": [6, 5, 5], "mrope_interleaved": True},
                rope_theta=5e6,
            )
            | {"architectures": None},
            "vision_config": {"deepstack_visual_indexes": [5, 11, 17]},
        },
        QWEN
        | heads(32)
        | {
            "rope.freq_base": 5e6,
            "rope.dimension_sections": [6, 5, 5, 0],
            "n_deepstack_layers": 3,
        },
    ),
    "gemma": (common("GemmaForCausalLM", hidden_act="gelu"), GEMMA),
    "granite": (
        common(
            "GraniteForCausalLM",
            attention_multiplier=0.015625,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            logits_scaling=8.0,
        ),
        SMALL
        | {
            RMS: 1e-6,
            "vocab_size": 1000,
            "rope.dimension_count": 32,
            "rope.freq_base": 1e4,
            "attention.scale": 0.015625,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 8.0,
        },
    ),
    "muse glimmer, its text part": (
        {
            "architectures": ["MuseGlimmerForConditionalGeneration"],
            "text_config": common(
                "none",
                num_hidden_layers=5,
                head_dim=32,
                rope_theta=5e5,
                layer_rope_theta=[0, 5e5, 5e5, 5e5, 0],
            )
            | {"architectures": None},
            "vision_config": {},
        },
        SMALL
        | heads(32)
        | {
            "block_count": 5,
            RMS: 1e-5,
            "rope.freq_base": 5e5,
            "final_logit_softcapping": 20.0,
            "logit_scale": 26.0**-0.5,
            "attention.sliding_window": 2048,
            "attention.sliding_window_pattern": [False, True, True, True, False],
        },
    ),
    "olmo 2": (common("Olmo2ForCausalLM"), SMALL | {RMS: 1e-5, "rope.freq_base": 1e4}),
    "glm 4": (
        common("Glm4ForCausalLM", head_dim=32),
        SMALL | heads(32) | {RMS: 1.5625e-7, "rope.freq_base": 1e4, "rope.dimension_count": 16},
    ),
    "seed oss": (
        common("SeedOssForCausalLM", head_dim=64, rope_theta=1e7),
        SMALL | heads(64) | {RMS: 1e-6, "rope.freq_base": 1e7},
    ),
    "exaone 4 without windows": (
        common("Exaone4ForCausalLM", sliding_window=None),
        SMALL | {RMS: 1e-5, "rope.freq_base": 1e4, "vocab_size": 1000},
    ),
    "exaone 4 with windows": (
        common("Exaone4ForCausalLM", num_hidden_layers=64, sliding_window_pattern=4),
        sizes(64, 2048, 256, 512, 8, 4)
        | {
            RMS: 1e-5,
            "rope.freq_base": 1e4,
            "vocab_size": 1000,
            "attention.sliding_window": 4096,
            "attention.sliding_window_pattern": [True, True, True, False] * 16,
        },
    ),
    "hunyuan": (
        common(
            "HunYuanDenseV1ForCausalLM",
            head_dim=32,
            rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        ),
        SMALL
        | heads(32)
        | {
            RMS: 1e-5,
            "context_length": 262144,
            "rope.freq_base": 1e4 * 1000.0 ** (32 / 30),
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1,
            ORIGINAL: 262144,
        },
    ),
    "ernie 4.5": (
        common("Ernie4_5ForCausalLM", head_dim=32),
        SMALL | heads(32) | {RMS: 1e-5, "rope.freq_base": 5e5},
    ),
    "command r": (
        common("CohereForCausalLM", model_max_length=131072, rope_theta=8e6),
        SMALL
        | {
            "context_length": 131072,
            "rope.freq_base": 8e6,
            LAYER: 1e-5,
            "logit_scale": 0.0625,
            "rope.scaling.type": "none",
        },
    ),
    "starcoder 2": (
        common("Starcoder2ForCausalLM", hidden_act="gelu_pytorch_tanh", sliding_window=4096),
        SMALL | {LAYER: 1e-5, "rope.freq_base": 1e4},
    ),
    "stablelm": (
        common("StableLmForCausalLM", use_parallel_residual=False),
        SMALL
        | {
            LAYER: 1e-5,
            "rope.freq_base": 1e4,
            "rope.dimension_count": 8,
            "use_parallel_residual": False,
        },
    ),
    "nemotron": (
        common("NemotronForCausalLM", hidden_act="relu2", head_dim=32),
        SMALL
        | heads(32)
        | {
            LAYER: 1e-5,
            "rope.freq_base": 1e4,
            "rope.dimension_count": 16,
            "rope.scaling.type": "none",
            "vocab_size": 1000,
        },
    ),
    "phi 2": (
        common("PhiForCausalLM", hidden_act="gelu_new", partial_rotary_factor=0.25),
        SMALL | {LAYER: 1e-5, "rope.freq_base": 1e4, "rope.dimension_count": 8},
    ),
}
