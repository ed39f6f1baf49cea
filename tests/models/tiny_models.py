"""Tiny random-weight models of every architecture, the same on every machine and NumPy version.

Weights come from a counter hashed with splitmix64, so a golden file need only remember a seed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

F32 = np.float32


@dataclass(frozen=True)
class Tiny:
    """One model to make: sizes, extra metadata (keys without the architecture's prefix)."""

    name: str
    architecture: str
    n_layers: int = 3
    n_embd: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = 97
    n_ctx_train: int = 512
    n_rot: int | None = None
    tied: bool = False
    biases: tuple[str, ...] = ()
    fused_qkv: bool = False
    keys: dict[str, Any] = field(default_factory=dict)
    n_ctx: int = 256
    n_prompt: int = 40

    @property
    def rms(self) -> bool:
        return self.architecture != "cohere2"


SWA = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
ORIGINAL = "rope.scaling.original_context_length"
QKV_BIAS = ("attn_q", "attn_k", "attn_v")
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, ORIGINAL: 32}

CASES: tuple[Tiny, ...] = (
    Tiny("llama-mha", "llama", n_kv_heads=4),
    # Rows that no block size divides, in every matrix.
    Tiny("llama-odd", "llama", n_embd=51, n_heads=6, head_dim=8, n_ff=101, n_vocab=77, tied=True),
    Tiny("llama-e256", "llama", n_heads=2, n_kv_heads=1, head_dim=256),
    Tiny("llama-e80", "llama", n_heads=2, n_kv_heads=2, head_dim=80),
    Tiny("llama-groups8", "llama", n_heads=8, n_kv_heads=1, head_dim=12, n_embd=96),
    Tiny("llama-linear", "llama", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    Tiny("llama-linear-old", "llama", keys={"rope.scale_linear": 2.0, "rope.freq_base": 5e5}),
    Tiny("llama-yarn", "llama", head_dim=32, keys=YARN),
    Tiny("llama-yarn-attn", "llama", head_dim=32, keys=YARN | {"rope.scaling.attn_factor": 0.8}),
    Tiny("llama-freqs", "llama", head_dim=32, keys={"rope.freq_base": 5e5, "factors": "freqs"}),
    Tiny(
        "llama-longrope",
        "llama",
        keys={
            "rope.scaling.type": "longrope",
            ORIGINAL: 64,
            "factors": "longrope",
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    Tiny(
        "llama-bias",
        "llama",
        biases=(*QKV_BIAS, "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    ),
    Tiny("llama-fused", "llama", fused_qkv=True, biases=("attn_qkv",)),
    Tiny(
        "mistral3",
        "mistral3",
        head_dim=32,
        keys=YARN
        | {
            "rope.scaling.yarn_log_multiplier": 0.7,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "attention.temperature_scale": 0.3,
        },
    ),
    Tiny("qwen2", "qwen2", n_heads=7, n_kv_heads=1, n_embd=112, biases=QKV_BIAS, tied=True),
    Tiny("qwen2-yarn", "qwen2", n_embd=64, biases=QKV_BIAS, keys=YARN),
    Tiny("qwen3", "qwen3", n_embd=80, head_dim=128, keys={"rope.freq_base": 1e6}),
    Tiny("qwen3-tied", "qwen3", n_heads=8, n_kv_heads=2, head_dim=8, n_embd=44, tied=True),
    Tiny("phi3", "phi3", n_heads=2, n_kv_heads=1, head_dim=96, n_embd=192, fused_qkv=True),
    Tiny("phi3-window", "phi3", fused_qkv=True, keys={SWA: 16}),
    Tiny(
        "phi3-long",
        "phi3",
        fused_qkv=True,
        n_rot=12,
        keys={ORIGINAL: 64, "factors": "longrope", "rope.scaling.attn_factor": 1.19},
        tied=True,
    ),
    Tiny(
        "phi3-short",
        "phi3",
        fused_qkv=True,
        keys={ORIGINAL: 256, "factors": "longrope", "rope.scaling.attn_factor": 1.19},
    ),
    Tiny("gemma2", "gemma2", n_layers=4, head_dim=32, tied=True, keys={SWA: 16}),
    Tiny(
        "gemma2-caps",
        "gemma2",
        n_heads=8,
        head_dim=8,
        tied=True,
        keys={SWA: 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    # The number of layers at which attention is scaled by the embedding's size.
    Tiny(
        "gemma2-46",
        "gemma2",
        n_layers=46,
        n_embd=24,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        n_ff=32,
        tied=True,
        keys={SWA: 20},
    ),
    Tiny(
        "gemma3",
        "gemma3",
        n_layers=7,
        head_dim=32,
        tied=True,
        keys={
            SWA: 16,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Tiny(
        "gemma3-pattern",
        "gemma3",
        n_layers=4,
        keys={SWA: 7, PATTERN: [False, True, True, False], "rope.freq_base_swa": 3e4},
    ),
    Tiny("gemma3-dense", "gemma3", n_heads=2, n_kv_heads=1, head_dim=256),
    Tiny("cohere2", "cohere2", n_layers=5, tied=True, keys={SWA: 12, "logit_scale": 0.25}),
    Tiny(
        "cohere2-period",
        "cohere2",
        n_layers=4,
        n_heads=8,
        n_kv_heads=8,
        head_dim=8,
        tied=True,
        n_rot=4,
        keys={SWA: 24, "logit_scale": 2.0, PATTERN: 2},
    ),
    Tiny("smollm3", "smollm3", n_layers=5, tied=True, keys={"rope.freq_base": 5e6}),
    Tiny("smollm3-gqa", "smollm3", n_layers=4, n_heads=8, n_kv_heads=1, head_dim=64),
)


def _uniform(name: str, seed: int, n: int) -> np.ndarray:
    """n numbers in [0, 1) from splitmix64 of a counter; the stream is named by (name, seed)."""
    start = zlib.crc32(name.encode()) * (1 << 32) + seed * 0x9E3779B9
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(start % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _noise(name: str, seed: int, shape: tuple[int, ...], std: float) -> np.ndarray:
    """Bell-shaped noise (the sum of four uniform numbers) of standard deviation `std`."""
    n = int(np.prod(shape))
    u = _uniform(name, seed, 4 * n).reshape(4, n)
    return ((u[0] + u[1] + u[2] + u[3] - 2.0) * (std * 3.0**0.5)).reshape(shape).astype(F32)


def metadata(case: Tiny) -> dict[str, Any]:
    """The file's metadata, all keys, as Python values."""
    words = ["<unk>", "<s>", "</s>"]
    words += [f"w{i}" for i in range(case.n_vocab - len(words))]
    eps = "layer_norm_rms_epsilon" if case.rms else "layer_norm_epsilon"
    values: dict[str, Any] = {
        "context_length": case.n_ctx_train,
        "embedding_length": case.n_embd,
        "block_count": case.n_layers,
        "feed_forward_length": case.n_ff,
        "attention.head_count": case.n_heads,
        "attention.head_count_kv": case.n_kv_heads,
        "attention.key_length": case.head_dim,
        "attention.value_length": case.head_dim,
        f"attention.{eps}": 1e-5,
        "rope.dimension_count": case.n_rot or case.head_dim,
        **{key: value for key, value in case.keys.items() if key != "factors"},
    }
    return {
        "general.architecture": case.architecture,
        **{f"{case.architecture}.{key}": value for key, value in values.items()},
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [0.0] * case.n_vocab,
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * (case.n_vocab - 3),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _shapes(case: Tiny) -> dict[str, tuple[int, ...]]:
    """Matrices and norms of one block."""
    n_q, n_kv = case.n_heads * case.head_dim, case.n_kv_heads * case.head_dim
    d, f = case.n_embd, case.n_ff
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (d,)}
    if case.fused_qkv:
        shapes["attn_qkv"] = (n_q + 2 * n_kv, d)
    else:
        shapes |= {"attn_q": (n_q, d), "attn_k": (n_kv, d), "attn_v": (n_kv, d)}
    shapes |= {"attn_output": (d, n_q), "ffn_down": (d, f)}
    if case.architecture == "phi3":
        shapes["ffn_up"] = (2 * f, d)
    else:
        shapes |= {"ffn_gate": (f, d), "ffn_up": (f, d)}
    if case.architecture != "cohere2":
        shapes["ffn_norm"] = (d,)
    if case.architecture in ("qwen3", "gemma3"):
        shapes |= {"attn_q_norm": (case.head_dim,), "attn_k_norm": (case.head_dim,)}
    if case.architecture in ("gemma2", "gemma3"):
        shapes |= {"post_attention_norm": (d,), "post_ffw_norm": (d,)}
    return shapes


# Gains that keep attention peaked and branches as large as the residual: with less, a tied model
# only ever repeats its last token.
GAINS = {"attn_q": 1.7, "attn_k": 1.7, "attn_qkv": 1.7, "attn_output": 2.5, "ffn_down": 3.0}


def tensors(case: Tiny, seed: int) -> dict[str, np.ndarray]:
    """All tensors, float32, by their names in the file."""

    def make(name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> np.ndarray:
        return _noise(f"{case.name}/{name}", seed, shape, std) + F32(mean)

    embedding_std = 1.0 if case.tied else 0.5
    if case.architecture in ("gemma2", "gemma3"):
        embedding_std = case.n_embd**-0.5
    result = {"token_embd.weight": make("embd", (case.n_vocab, case.n_embd), embedding_std)}
    result["output_norm.weight"] = make("output_norm", (case.n_embd,), 0.3, 1.0)
    if not case.tied:
        result["output.weight"] = make("output", (case.n_vocab, case.n_embd), 0.3)
    n_half = (case.n_rot or case.head_dim) // 2
    factors = case.keys.get("factors")
    if factors == "freqs":
        result["rope_freqs.weight"] = 1 + 7 * np.arange(n_half, dtype=F32) / F32(n_half)
    elif factors == "longrope":
        ramp = np.arange(n_half, dtype=F32) / F32(n_half)
        result["rope_factors_short.weight"] = 1 + ramp / 4
        result["rope_factors_long.weight"] = 1 + 3 * ramp
    for layer in range(case.n_layers):
        for name, shape in _shapes(case).items():
            full = f"blk.{layer}.{name}"
            if len(shape) == 1:
                gain = 2.0 if name.startswith("post_") else 1.0
                result[f"{full}.weight"] = make(full, shape, 0.2, gain)
            else:
                std = GAINS.get(name, 1.5) / shape[1] ** 0.5
                result[f"{full}.weight"] = make(full, shape, std)
            if name in case.biases:
                result[f"{full}.bias"] = make(f"{full}.bias", shape[:1], 0.5)
    return result


def prompt(case: Tiny, seed: int) -> list[int]:
    """Ids to begin with: BOS, then words drawn evenly."""
    drawn = _uniform(f"{case.name}/prompt", seed, case.n_prompt - 1)
    return [1, *(3 + np.floor(drawn * (case.n_vocab - 3)).astype(int)).tolist()]


def write_metadata(writer: gguf.GGUFWriter, case: Tiny) -> None:
    """Put a model's metadata into the file to be."""
    for key, value in metadata(case).items():
        if key == "general.architecture":
            continue  # the writer has put it there
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path: Path, case: Tiny, seed: int) -> None:
    """Write a model as a GGUF file of float32 tensors."""
    writer = gguf.GGUFWriter(path, case.architecture)
    write_metadata(writer, case)
    for name, values in tensors(case, seed).items():
        writer.add_tensor(name, values)
    finish(writer)
