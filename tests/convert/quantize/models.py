"""Models to quantise: files with the tensors of many architectures, of random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from ...models.tiny_models import finish


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model whose tensors are small: what counts are their names and row lengths."""

    architecture: str = "llama"
    n_layers: int = 18
    n_heads: int = 8
    n_kv_heads: int = 2
    n_experts: int = 0
    tied: bool = True
    fused: bool = False
    n_embd: int = 256
    n_ff: int = 256


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Tensors by name, in the order of a converter."""
    n, f = sizes.n_embd, sizes.n_ff
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (2, n), "output_norm.weight": (n,)}
    if not sizes.tied:
        found["output.weight"] = (2, n)
    for i in range(sizes.n_layers):
        parts = ("qkv",) if sizes.fused else ("q", "k", "v")
        found |= {f"blk.{i}.attn_{part}.weight": (2, n) for part in parts}
        found |= {f"blk.{i}.attn_{part}.bias": (2,) for part in parts}
        found |= {f"blk.{i}.attn_norm.weight": (n,), f"blk.{i}.attn_output.weight": (2, n)}
        experts = (sizes.n_experts,) if sizes.n_experts else ()
        kind = "_exps" if experts else ""
        if experts:
            found[f"blk.{i}.ffn_gate_inp.weight"] = (*experts, n)
        found |= {f"blk.{i}.ffn_{part}{kind}.weight": (*experts, 2, n) for part in ("gate", "up")}
        found[f"blk.{i}.ffn_down{kind}.weight"] = (*experts, 2, f)
        found[f"blk.{i}.ffn_norm.weight"] = (n,)
    return found


def write(
    path: Path,
    sizes: Sizes,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    extra: Mapping[str, tuple[int, ...]] | None = None,
    split_tensors: int = 0,
) -> None:
    """Write the file, matrices of `kind`, `extra` tensors besides; in shards of `split_tensors`."""
    writer = gguf.GGUFWriter(
        path, sizes.architecture, split_max_tensors=split_tensors, small_first_shard=False
    )
    writer.add_context_length(128)
    writer.add_embedding_length(sizes.n_embd)
    writer.add_block_count(sizes.n_layers)
    writer.add_feed_forward_length(sizes.n_ff)
    writer.add_head_count(sizes.n_heads)
    writer.add_head_count_kv(sizes.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(sizes.n_experts)
    writer.add_expert_used_count(min(sizes.n_experts, 2))
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ä€"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_bool("flag", True)
    rng = np.random.default_rng(0)
    for name, shape in {**shapes(sizes), **(extra or {})}.items():
        x = (0.02 * rng.standard_normal(shape)).astype(np.float32)
        if len(shape) > 1 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, x)
    finish(writer)


def types_of(path: Path) -> dict[str, str]:
    """Type of each tensor of a file, by gguf-py."""
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def data_of(path: Path) -> dict[str, np.ndarray]:
    """Bytes of each tensor, by gguf-py."""
    return {tensor.name: tensor.data.view(np.uint8) for tensor in gguf.GGUFReader(path).tensors}


def decoded(path: Path) -> dict[str, np.ndarray]:
    """Values of each tensor, by gguf-py."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
