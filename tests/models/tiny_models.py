"""Tiny random-weight models of every architecture, the same on every machine and NumPy version.

Weights come from a counter hashed with splitmix64, so a golden file need only remember a seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from .tiny import case as differences
from .tiny import gemma, hybrids, latent
from .tiny.case import Tiny

F32 = np.float32


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


def _expert_shapes(case: Tiny) -> dict[str, tuple[int, ...]]:
    """Matrices of the experts of a block."""
    n, d, used = case.keys["expert_count"], case.n_embd, case.keys["expert_used_count"]
    f = case.keys.get("expert_feed_forward_length")
    if f is None:
        f = case.n_ff // used if case.architecture == "qwen3moe" else case.n_ff
    narrow = case.keys.get("moe_latent_size", d)
    shapes: dict[str, tuple[int, ...]] = {"ffn_gate_inp": (n, d), "ffn_down_exps": (n, narrow, f)}
    shapes |= {"ffn_gate_exps": (n, f, narrow), "ffn_up_exps": (n, f, narrow)}
    if narrow != d:
        shapes |= {"ffn_latent_down": (narrow, d), "ffn_latent_up": (d, narrow)}
    shared = case.keys.get("expert_shared_count", 0) * f
    if shared := case.keys.get("expert_shared_feed_forward_length", shared):
        shapes |= {"ffn_gate_shexp": (shared, d), "ffn_up_shexp": (shared, d)}
        shapes["ffn_down_shexp"] = (d, shared)
        if case.architecture in ("qwen2moe", "qwen35moe", "qwen3next"):
            shapes["ffn_gate_inp_shexp"] = (d,)
    if case.architecture in differences.UNGATED:
        shapes = {k: v for k, v in shapes.items() if k not in ("ffn_gate_exps", "ffn_gate_shexp")}
    return shapes


def _has_experts(case: Tiny, layer: int) -> bool:
    if (
        case.architecture in differences.IN_OWN_LAYERS
        and not case.keys["feed_forward_length"][layer]
    ):
        return False
    return "expert_count" in case.keys and layer >= case.keys.get("leading_dense_block_count", 0)


def _shapes(case: Tiny, layer: int) -> dict[str, tuple[int, ...]]:
    """Matrices and norms of one block."""
    d, f, name = case.n_embd, case.n_ff, case.architecture
    if name == "gemma4":
        return gemma.shapes(case, layer)
    shapes: dict[str, tuple[int, ...]] = {}
    if name not in differences.NO_PRE_NORMS:
        shapes["attn_norm"] = (d,)
    if name in differences.IN_OWN_LAYERS:
        if f := case.keys["feed_forward_length"][layer]:
            whole = {"ffn_down": (d, f), "ffn_up": (f, d)}
            return shapes | (_expert_shapes(case) if _has_experts(case, layer) else whole)
        return shapes | (hybrids.mixer_shapes(case, layer) or _attention(case, layer))
    if name == "falcon-h1":
        shapes |= hybrids.mamba2(case)
    shapes |= hybrids.mixer_shapes(case, layer) or _attention(case, layer)
    if _has_experts(case, layer):
        shapes |= _expert_shapes(case)
    elif name in differences.FUSED_GATE_UP:
        shapes |= {"ffn_down": (d, f), "ffn_up": (2 * f, d)}
    elif name in differences.UNGATED:
        shapes |= {"ffn_down": (d, f), "ffn_up": (f, d)}
    else:
        shapes |= {"ffn_down": (d, f), "ffn_gate": (f, d), "ffn_up": (f, d)}
    if case.keys.get("nextn_predict_layers") and layer == case.n_layers - 1:
        shapes |= {"nextn.eh_proj": (d, 2 * d), "nextn.enorm": (d,), "nextn.hnorm": (d,)}
    if name in differences.POST_ATTENTION_IS_PRE_FFN:
        shapes["post_attention_norm"] = (d,)
    elif name not in (*differences.NO_PRE_NORMS, *differences.PARALLEL) and not case.each_head:
        shapes["ffn_norm"] = (d,)
    if name in differences.POST_NORMS:
        shapes |= {"post_attention_norm": (d,), "post_ffw_norm": (d,)}
    return shapes


def _attention(case: Tiny, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a block's attention."""
    if case.architecture == "deepseek2":
        return latent.attention_shapes(case)
    n_heads = case.keys.get("attention.head_count", [case.n_heads] * case.n_layers)[layer]
    n_q, n_kv = n_heads * case.head_dim, case.n_kv_heads * case.head_dim
    d, name = case.n_embd, case.architecture
    gates = n_q if name in differences.OUTPUT_GATE else 0
    if case.fused_qkv:
        shapes: dict[str, tuple[int, ...]] = {"attn_qkv": (n_q + 2 * n_kv, d)}
    else:
        shapes = {"attn_q": (n_q + gates, d), "attn_k": (n_kv, d), "attn_v": (n_kv, d)}
    shapes["attn_output"] = (d, n_q)
    if name == "gpt-oss":
        shapes["attn_sinks"] = (case.n_heads,)
    if name == "muse-glimmer" or case.name == "laguna-elements":
        shapes["attn_gate"] = (n_q, d)
    elif name == "laguna":
        shapes["attn_gate"] = (n_heads, d)
    if case.head_norm or name in differences.HEAD_NORM:
        shapes |= {"attn_q_norm": (case.head_dim,), "attn_k_norm": (case.head_dim,)}
    elif case.each_head:
        shapes |= {
            "attn_q_norm": (case.n_heads, case.head_dim),
            "attn_k_norm": (case.n_kv_heads, case.head_dim),
        }
    elif name in ("olmo2", "olmoe"):
        shapes |= {"attn_q_norm": (n_q,), "attn_k_norm": (n_kv,)}
    return shapes


# Gains that keep attention peaked and branches as large as the residual: with less, a tied model
# only ever repeats its last token.
GAINS = {"attn_q": 1.7, "attn_k": 1.7, "attn_qkv": 1.7, "attn_output": 2.5}
GAINS |= latent.GAINS
GAINS |= dict.fromkeys(("ffn_down", "ffn_down_exps", "ffn_down_shexp"), 3.0)


def tensors(case: Tiny, seed: int) -> dict[str, np.ndarray]:
    """All tensors, float32, by their names in the file."""

    def make(name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> np.ndarray:
        return _noise(f"{case.name}/{name}", seed, shape, std) + F32(mean)

    embedding_std = 1.0 if case.tied else 0.5
    if case.architecture in differences.SCALED_EMBEDDING:
        embedding_std = case.n_embd**-0.5
    result = {"token_embd.weight": make("embd", (case.n_vocab, case.n_embd), embedding_std)}
    output_norm = hybrids.OUTPUT_NORM.get(case.architecture, "output_norm")
    result[f"{output_norm}.weight"] = make("output_norm", (case.n_embd,), 0.3, 1.0)
    if case.architecture in differences.NORM_BIAS:
        result["output_norm.bias"] = make("output_norm.bias", (case.n_embd,), 0.3)
    if case.architecture == "phi2":
        result["output.bias"] = make("output.bias", (case.n_vocab,), 0.3)
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
    for name, (shape, std) in gemma.whole_shapes(case).items():
        result[name] = make(name, shape, std, 1.0 if name.endswith("norm.weight") else 0.0)
    if case.architecture == "gemma4":
        result["rope_freqs.weight"] = gemma.factors(n_half)
    for layer in range(case.n_layers):
        if case.choice_bias and _has_experts(case, layer):
            full = f"blk.{layer}.exp_probs_b.bias"
            result[full] = make(full, (case.keys["expert_count"],), 0.2)
        for name, shape in _shapes(case, layer).items():
            full = f"blk.{layer}.{name}"
            if name.endswith("_norm") or name in hybrids.MEANS:
                post = case.architecture in differences.POST_NORMS and name.startswith("post_")
                gain = hybrids.MEANS.get(name, 2.0 if post else 1.0)
                if case.architecture == "gemma4":
                    gain = gemma.MEANS.get(name, gain)
                stored = hybrids.UNSUFFIXED.get(name, f"{name}.weight")
                if (case.architecture, name) == ("falcon-h1", "ffn_norm"):
                    stored = name
                values = make(full, shape, 0.2, gain)
                if name == "ssm_a" and len(shape) == 2:
                    values = -np.abs(values)  # otherwise states grow without end
                result[f"blk.{layer}.{stored}"] = values
            else:
                std = GAINS.get(name, 1.5) / shape[-1] ** 0.5
                if case.architecture == "muse-glimmer" and name in ("attn_output", "ffn_down"):
                    std *= 1e-3  # outputs so small that the epsilon of their norms counts
                result[f"{full}.weight"] = make(full, shape, std)
            norm_bias = (
                case.architecture in differences.NORM_BIAS
                and name.endswith("_norm")
                and len(shape) == 1
            )
            if name in case.biases or norm_bias:
                result[f"{full}.bias"] = make(f"{full}.bias", shape[:-1] or shape, 0.5)
    return result


def prompt(case: Tiny, seed: int) -> list[int]:
    """Ids to begin with: BOS, then words drawn evenly."""
    drawn = _uniform(f"{case.name}/prompt", seed, case.n_prompt - 1)
    return [1, *(3 + np.floor(drawn * (case.n_vocab - 3)).astype(int)).tolist()]


def add_metadata(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    """Add metadata of Python values to a file that is not written yet."""
    for key, value in values.items():
        if key == "general.architecture":
            continue  # the writer has put it there
        if key.endswith("precompiled_charsmap"):
            writer.add_precompiled_charsmap(bytes(value))
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
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
    add_metadata(writer, metadata(case))
    for name, values in tensors(case, seed).items():
        writer.add_tensor(name, values)
    finish(writer)
