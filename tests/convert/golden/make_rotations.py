"""Write rotations.json: frequencies and amplitudes that transformers computes of config.json.

Made with transformers 5.24 and torch 2.13: `python tests/convert/golden/make_rotations.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

OUT = Path(__file__).with_name("rotations.json")
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "max_position_embeddings": 8192,
}
TYPES = {
    "llama": "LlamaForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
GEMMA = {"query_pre_attn_scalar": 32, "sliding_window": 512}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}
LONG = {
    "rope_type": "longrope",
    "long_factor": [1.0 + 0.5 * i for i in range(16)],
    "short_factor": [1.0 + 0.1 * i for i in range(16)],
    "original_max_position_embeddings": 2048,
}
MINISTRAL = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1}
ORIGINAL = "original_max_position_embeddings"


def scaled(rope: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The part of a config.json as transformers writes it today."""
    return {"rope_parameters": {"rope_theta": 1e5, **rope, **more}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("llama", {"rope_theta": 1e5}),
    "default, with keys of other kinds": ("llama", scaled({"factor": 4.0, "mscale": 2.0})),
    "default, with a share that is ignored": ("llama", {"partial_rotary_factor": 0.5}),
    "linear": ("llama", scaled({"rope_type": "linear", "factor": 2.0})),
    "linear, with an ignored attention_factor": (
        "llama",
        scaled({"rope_type": "linear", "factor": 2.0}, attention_factor=3.0),
    ),
    "linear, as old files have it": (
        "qwen2",
        {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4}},
    ),
    "the old spelling counts before the new": (
        "llama",
        scaled({"rope_type": "linear", "factor": 2.0}) | {"rope_scaling": YARN},
    ),
    "yarn": ("llama", scaled(YARN)),
    "yarn, attention_factor 1": ("llama", scaled(YARN, attention_factor=1.0)),
    "yarn, attention_factor 1.5": ("qwen3", scaled(YARN, attention_factor=1.5)),
    "yarn, equal mscales": ("llama", scaled(YARN, mscale=1.0, mscale_all_dim=1.0)),
    "yarn, two mscales": ("qwen2", scaled(YARN, mscale=0.707, mscale_all_dim=0.5)),
    "yarn, one mscale, which is ignored": ("llama", scaled(YARN, mscale=0.707)),
    "yarn, attention_factor before mscales": (
        "llama",
        scaled(YARN, attention_factor=1.2, mscale=0.7, mscale_all_dim=0.5),
    ),
    "yarn, betas": ("qwen2", scaled(YARN, beta_fast=8.0, beta_slow=2.0)),
    "yarn, betas of 0": ("llama", scaled(YARN, beta_fast=0, beta_slow=0)),
    "yarn, all said in null": (
        "llama",
        scaled(YARN, attention_factor=None, beta_fast=None, mscale=None, factor=None),
    ),
    "yarn, original length by the context": ("llama", scaled({"rope_type": "yarn", "factor": 4.0})),
    "yarn, original length at the top": ("llama", scaled(YARN) | {ORIGINAL: 1024}),
    "yarn, smollm3": ("smollm3", scaled(YARN, beta_fast=16.0)),
    "yarn, gemma2": ("gemma2", GEMMA | scaled(YARN, attention_factor=1.25)),
    "yarn, gemma3": (
        "gemma3_text",
        GEMMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e6, **YARN}}},
    ),
    "yarn, ministral3": ("ministral3", scaled(MINISTRAL, mscale=1.0, mscale_all_dim=1.0)),
    "yarn, ministral3 with other mscales": (
        "ministral3",
        scaled(MINISTRAL, mscale=0.7, mscale_all_dim=0.5),
    ),
    "yarn, ministral3 with half of the mscales": (
        "ministral3",
        scaled(MINISTRAL, mscale_all_dim=0.5),
    ),
    "llama3": ("llama", scaled(LLAMA3)),
    "longrope": ("phi3", {ORIGINAL: 2048} | scaled(LONG)),
    "longrope, factor": ("phi3", {ORIGINAL: 2048} | scaled(LONG, factor=16.0)),
    "longrope, attention_factor": ("phi3", {ORIGINAL: 2048} | scaled(LONG, attention_factor=1.3)),
    "longrope, once called yarn": ("phi3", {ORIGINAL: 2048} | scaled(LONG, rope_type="yarn")),
    "longrope, once called su": ("phi3", {ORIGINAL: 2048} | scaled(LONG, rope_type="su")),
    "longrope, llama": ("llama", scaled(LONG)),
    "default, part of a head": (
        "phi3",
        {"partial_rotary_factor": 0.75, "rope_scaling": None, ORIGINAL: 8192},
    ),
    "linear, gemma2": ("gemma2", GEMMA | scaled({"rope_type": "linear", "factor": 2.0})),
    "linear, gemma3, as old files have it": (
        "gemma3_text",
        GEMMA
        | {
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_theta": 2e6,
            "rope_local_base_freq": 3e4,
        },
    ),
    "linear, gemma3": (
        "gemma3_text",
        GEMMA
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
            }
        },
    ),
    "gemma3, old scaling beside new bases": (
        "gemma3_text",
        GEMMA
        | {
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
            },
        },
    ),
    "cohere2": ("cohere2", {"rope_theta": 5e4, "sliding_window": 512, "rotary_pct": 1.0}),
}


def rotations(model_type: str, values: dict[str, Any]) -> dict[str, Any]:
    """By name ("global", "windowed", "long"): frequencies and amplitude."""
    kind = transformers.CONFIG_MAPPING[model_type]
    config = kind.from_dict(json.loads(json.dumps(values)))
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    embedding = model.model.rotary_emb

    def rotation(prefix: str) -> dict[str, Any]:
        frequencies = getattr(embedding, f"{prefix}inv_freq").double().tolist()
        amplitude = getattr(embedding, f"{prefix}attention_scaling")
        return {"frequencies": [float(f"{f:.9g}") for f in frequencies], "amplitude": amplitude}

    if model_type == "gemma3_text":
        return {"global": rotation("full_attention_"), "windowed": rotation("sliding_attention_")}
    made = {"global": rotation("")}
    if embedding.rope_type == "longrope":
        embedding(torch.zeros(1, 1, 1), torch.tensor([[config.max_position_embeddings - 1]]))
        made["long"] = rotation("")
    return made


def main() -> None:
    cases = {}
    for name, (model_type, more) in CASES.items():
        values = SIZES | {"architectures": [TYPES[model_type]], "model_type": model_type} | more
        cases[name] = {"config": values, "rotations": rotations(model_type, values)}
    lines = (f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
