"""Folders of Hugging Face models made with NumPy alone: config.json, safetensors, a vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import vocabularies

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 296,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A safetensors file; uint16 arrays are taken for bfloat16."""
    names = {"f8": "F64", "f4": "F32", "f2": "F16", "u2": "BF16", "i4": "I32", "u1": "U8"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, values in tensors.items():
        dtype = names[values.dtype.str[1:]]
        span = [at, at + values.nbytes]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": span}
        at += values.nbytes
    encoded = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(values).tobytes() for values in tensors.values())
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def llama_tensors(config: Mapping[str, Any] = LLAMA) -> dict[str, np.ndarray]:
    """Random float32 weights by transformers' names."""
    rng = np.random.default_rng(3)
    d, f, v = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        parts = {"q_proj": (d, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, d)}
        shapes |= {f"{layer}.self_attn.{name}.weight": shape for name, shape in parts.items()}
        parts = {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
        shapes |= {f"{layer}.mlp.{name}.weight": shape for name, shape in parts.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{name}.weight"] = (d,)
    shapes |= {"model.norm.weight": (d,), "lm_head.weight": (v, d)}
    return {
        name: (rng.standard_normal(shape) * 0.2 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_llama(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> None:
    """A small llama with a SentencePiece vocabulary, all that `kvarn convert` needs."""
    values = {**LLAMA, **(config or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    write_safetensors(folder / "model.safetensors", tensors or llama_tensors(values))
    vocabularies.save_sentencepiece(folder)
    vocabularies.save_settings(folder, add_bos_token=True, tokenizer_class="LlamaTokenizer")
