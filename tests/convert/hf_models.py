"""Tiny models as transformers saves them: random weights of every architecture to convert."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class HFCase:
    """One model to make: a configuration class and what it is given beside the common sizes."""

    name: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    n_layers: int = 2
    sees: bool = False
    """The sizes are those of the text part of a model that sees."""

    @property
    def values(self) -> dict[str, Any]:
        """All arguments of the configuration class."""
        sizes: dict[str, Any] = {
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        if self.sees:
            return {**self.settings, "text_config": sizes | self.settings["text_config"]}
        return sizes | self.settings


YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
MISTRAL_YARN = YARN | {
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "factor": 8.0,
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
}
EXAONE4 = {"sliding_window": None, "layer_types": ["full_attention"] * 2}

CASES = (
    HFCase("llama", "LlamaConfig"),
    HFCase("llama-tied-bias", "LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True}),
    HFCase("llama-31", "LlamaConfig", {"rope_parameters": LLAMA3, "head_dim": 32}),
    HFCase("llama-yarn", "LlamaConfig", {"rope_parameters": YARN}),
    HFCase(
        "llama-yarn-amplitude",
        "LlamaConfig",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5}},
    ),
    HFCase("llama-long", "LlamaConfig", {"rope_parameters": LONGROPE}),
    HFCase("mistral", "MistralConfig", {"sliding_window": None, "head_dim": 32}),
    HFCase(
        "mistral3",
        "Ministral3Config",
        {
            "head_dim": 32,
            "rope_parameters": MISTRAL_YARN,
        },
    ),
    HFCase("qwen2", "Qwen2Config", {"tie_word_embeddings": True}),
    HFCase("qwen2-yarn", "Qwen2Config", {"rope_parameters": YARN}),
    HFCase("qwen3", "Qwen3Config", {"head_dim": 32}),
    HFCase("phi3", "Phi3Config", {"original_max_position_embeddings": 512}),
    HFCase(
        "phi3-long",
        "Phi3Config",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    HFCase(
        "gemma2",
        "Gemma2Config",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8},
        n_layers=4,
    ),
    HFCase(
        "gemma2-linear",
        "Gemma2Config",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        },
    ),
    HFCase(
        "gemma3-yarn",
        "Gemma3TextConfig",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "rope_parameters": {"full_attention": YARN | {"rope_theta": 1e6}},
        },
        n_layers=7,
    ),
    HFCase(
        "gemma3",
        "Gemma3TextConfig",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8},
        n_layers=7,
    ),
    HFCase(
        "gemma3-pattern",
        "Gemma3TextConfig",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        n_layers=3,
    ),
    HFCase(
        "cohere2",
        "Cohere2Config",
        {"sliding_window": 8, "logit_scale": 0.25, "rotary_pct": 1.0},
        n_layers=5,
    ),
    HFCase("smollm3", "SmolLM3Config", n_layers=5),
    HFCase("gemma", "GemmaConfig", {"head_dim": 32, "num_key_value_heads": 1}),
    HFCase(
        "qwen3vl",
        "Qwen3VLConfig",
        {
            "text_config": {
                "head_dim": 32,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 5e6,
                    "mrope_section": [6, 5, 5],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": 64,
                "patch_size": 4,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
        },
        n_layers=3,
        sees=True,
    ),
    HFCase(
        "granite",
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.15,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    HFCase(
        "muse-glimmer",
        "MuseGlimmerConfig",
        {
            "text_config": {"head_dim": 32, "sliding_window": 8, "qk_scale_factor": 1.7},
            "vision_config": {
                "num_hidden_layers": 1,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_attention_heads": 2,
            },
        },
        n_layers=5,
        sees=True,
    ),
    HFCase("olmo2", "Olmo2Config"),
    HFCase(
        "olmo3",
        "Olmo3Config",
        {
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": YARN | {"attention_factor": 1.2},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        n_layers=5,
    ),
    HFCase("glm4", "Glm4Config", {"head_dim": 32}),
    HFCase("seed_oss", "SeedOssConfig", {"head_dim": 32}),
    HFCase("exaone4", "Exaone4Config", EXAONE4),
    HFCase(
        "exaone4-llama3", "Exaone4Config", EXAONE4 | {"rope_parameters": LLAMA3, "hidden_size": 128}
    ),
    HFCase("hunyuan", "HunYuanDenseV1Config", {"head_dim": 32}),
    HFCase(
        "hunyuan-alpha",
        "HunYuanDenseV1Config",
        {
            "head_dim": 32,
            "max_position_embeddings": 32_768,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 50.0,
                "factor": 1.0,
            },
        },
    ),
    HFCase("ernie4_5", "Ernie4_5Config", {"head_dim": 32}),
    HFCase("command-r", "CohereConfig", {"logit_scale": 0.25}),
    HFCase("starcoder2", "Starcoder2Config"),
    HFCase(
        "command-r-plus", "CohereConfig", {"use_qk_norm": True, "logit_scale": 0.25}, n_layers=64
    ),
    HFCase("stablelm", "StableLmConfig", {"use_qkv_bias": True}),
    HFCase("stablelm-parallel", "StableLmConfig", {"use_parallel_residual": True}),
    HFCase("stablelm-12b", "StableLmConfig", {"use_parallel_residual": True, "qk_layernorm": True}),
    HFCase("nemotron", "NemotronConfig", {"head_dim": None}),
    HFCase("phi2", "PhiConfig", {"num_key_value_heads": 4}),
)


def save_model(case: HFCase, folder: Path, dtype: str = "float32", **saving: Any) -> Any:
    """Write config.json and safetensors; the model, to compare with."""
    import torch
    import transformers

    config = getattr(transformers, case.config)(**case.values)
    torch.manual_seed(len(case.name))
    kind = (
        transformers.AutoModelForImageTextToText if case.sees else transformers.AutoModelForCausalLM
    )
    model = kind.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weights in model.named_parameters():
            # Norms stay near one, and everything else is large enough to make peaked attention.
            spread = 0.1 if weights.ndim == 1 else 1.5 / weights.shape[-1] ** 0.5
            start = weights if weights.ndim == 1 and not name.endswith("bias") else 0.0
            weights.copy_(start + torch.randn_like(weights) * spread)
    model.eval().to(getattr(torch, dtype))
    model.save_pretrained(folder, **saving)
    return model
