"""The same for gemma and what came after it."""

from __future__ import annotations

from typing import Any

from .configurations import GEMMA, LAYER, ORIGINAL, QWEN, RMS, SMALL, common, heads, sizes

OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
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
