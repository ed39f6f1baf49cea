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
)


def save_model(case: HFCase, folder: Path, dtype: str = "float32", **saving: Any) -> Any:
    """Write config.json and safetensors; the model, to compare with."""
    import torch
    import transformers

    config = getattr(transformers, case.config)(**case.values)
    torch.manual_seed(len(case.name))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weights in model.named_parameters():
            # Norms stay near one, and everything else is large enough to make peaked attention.
            spread = 0.1 if weights.ndim == 1 else 1.5 / weights.shape[-1] ** 0.5
            start = weights if weights.ndim == 1 and not name.endswith("bias") else 0.0
            weights.copy_(start + torch.randn_like(weights) * spread)
    model.eval().to(getattr(torch, dtype))
    model.save_pretrained(folder, **saving)
    return model
