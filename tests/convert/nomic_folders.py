"""Folders of NomicBERT as its makers store it: a tiny random model with experts, or without them,
and the vocabulary of XLM-RoBERTa or of BERT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.hf_folders import write_safetensors
from tests.models.tiny_text_encoders import TinyEncoder, tensors

N_VOCAB = 64
"""More than the vocabulary has, as in v2, whose embedding is padded."""
CASE = TinyEncoder("nomic-bert-moe", n_layers=4, n_experts=5, n_ctx=512, n_tokens=N_VOCAB)
DENSE = TinyEncoder("nomic-bert", n_ctx=2048)
NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "layer_output_norm": "norm2",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "ffn_gate_inp": "mlp.router.layer",
}


def config(case: TinyEncoder, **changes: Any) -> dict[str, Any]:
    """config.json, with GPT-2's names."""
    moe = bool(case.n_experts)
    values = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "vocab_size": case.n_vocab,
        "n_embd": case.n_embd,
        "n_inner": case.n_ff,
        "n_layer": case.n_layers,
        "n_head": case.n_heads,
        "n_positions": 2048 if moe else 8192,
        "max_trained_positions": 2048,
        "type_vocab_size": 2,
        "layer_norm_epsilon": 1e-6,
        "activation_function": "gelu" if moe else "swiglu",
        "pad_token_id": 1 if moe else 0,
        "causal": False,
        "prenorm": False,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), moe),
    }
    if moe:
        values |= {"num_experts": case.n_experts, "moe_top_k": 2, "moe_every_n_layers": 2}
    return values | changes


def stored(case: TinyEncoder) -> dict[str, np.ndarray]:
    """The tensors by their makers' names. Each layer of experts has what is added to their sum."""
    made = {}
    for name, values in tensors(case).items():
        stem, _, end = name.rpartition(".")
        if not stem.startswith("blk."):
            made[f"{NAMES[stem]}.{end}"] = values
            continue
        _, layer, part = stem.split(".")
        prefix = f"encoder.layers.{layer}"
        if part == "ffn_up_exps":
            made[f"{prefix}.mlp.experts.mlp.w1"] = values.reshape(-1, case.n_embd)
            made[f"{prefix}.mlp.experts.bias"] = np.zeros(case.n_embd, np.float32)
        elif part == "ffn_down_exps":
            made[f"{prefix}.mlp.experts.mlp.w2"] = values.swapaxes(1, 2).reshape(-1, case.n_embd)
        elif part == "ffn_up":
            made[f"{prefix}.mlp.{'fc1' if case.n_experts else 'fc11'}.{end}"] = values
        elif part != "ffn_exps":
            made[f"{prefix}.{NAMES[part]}.{end}"] = values
    if case.experts_bias:
        biases = {k: v for k, v in tensors(case).items() if k.endswith(".ffn_exps.bias")}
        for name, values in biases.items():
            made[f"encoder.layers.{name.split('.')[1]}.mlp.experts.bias"] = values
    return {name: np.ascontiguousarray(values) for name, values in made.items()}


def write(folder: Path, case: TinyEncoder, **changes: Any) -> Path:
    """config.json and model.safetensors. changes: of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(case, **changes)))
    write_safetensors(folder / "model.safetensors", stored(case))
    return folder
