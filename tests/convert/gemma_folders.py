"""Folders of embeddinggemma as sentence-transformers saves it: a tiny random model with two dense
layers, and a SentencePiece vocabulary written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert import vocabularies
from tests.convert.hf_folders import write_safetensors
from tests.models.tiny_text_encoders import TinyEncoder, tensors

CASE = TinyEncoder(
    "gemma-embedding",
    n_layers=7,
    n_heads=4,
    n_kv_heads=1,
    head_dim=32,
    n_ff=80,
    window=8,
    n_dense=160,
    n_tokens=300,
    period=6,
)
TEXTS = ["the mill", "and the mill, and the mill in the water and the sand", "I'm there"]
IDS = [[3 + (7 * i + 5 * k) % 290 for i in range(n)] for k, n in enumerate((3, 12, 40))]
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}


def write(folder: Path, **changes: Any) -> Path:
    """The folder. changes: of config.json."""
    config = {
        "architectures": ["Gemma3TextModel"],
        "model_type": "gemma3_text",
        "vocab_size": CASE.n_vocab,
        "hidden_size": CASE.n_embd,
        "intermediate_size": CASE.n_ff,
        "num_hidden_layers": CASE.n_layers,
        "num_attention_heads": CASE.n_heads,
        "num_key_value_heads": CASE.kv,
        "head_dim": CASE.e,
        "query_pre_attn_scalar": CASE.e,
        "max_position_embeddings": CASE.n_ctx,
        "sliding_window": CASE.window,
        "use_bidirectional_attention": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000.0,
        "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {}
    for name, values in tensors(CASE).items():
        if not name.startswith("dense"):
            shift = 1.0 if "norm" in name else 0.0
            stored[stored_name(name)] = values - np.float32(shift)
    write_safetensors(folder / "model.safetensors", stored)
    vocabularies.save_sentencepiece(folder)
    vocabularies.save_settings(
        folder, add_bos_token=True, add_eos_token=True, tokenizer_class="GemmaTokenizer"
    )
    modules = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    paths = ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"}
                for i, (kind, path) in enumerate(zip(modules, paths))
            ]
        )
    )
    save(folder / "1_Pooling", {"pooling_mode_mean_tokens": True}, None)
    for path, name in (("2_Dense", "dense_2"), ("3_Dense", "dense_3")):
        save_dense(folder / path, tensors(CASE)[f"{name}.weight"])
    return folder


def save_dense(
    folder: Path, weight: np.ndarray, activation: str = "torch.nn.modules.linear.Identity"
) -> None:
    """A Dense module."""
    n_out, n_in = weight.shape
    settings = {"in_features": n_in, "out_features": n_out, "bias": False}
    save(folder, settings | {"activation_function": activation}, {"linear.weight": weight})


def save(folder: Path, settings: dict[str, Any], stored: dict[str, np.ndarray] | None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    if stored is not None:
        write_safetensors(folder / "model.safetensors", stored)


def stored_name(name: str) -> str:
    """transformers' name of a tensor of a GGUF file."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return f"{NAMES[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"layers.{layer}.{NAMES[part]}.weight"
