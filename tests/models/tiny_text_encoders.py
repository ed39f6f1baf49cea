"""Tiny random text encoders as GGUF files, and their forward pass in float64, text by text.

The pass is written from the papers and llama.cpp's graphs, with plain NumPy, without batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from .tiny_models import finish

F64 = np.ndarray
WORDS = (
    "the a mill stood by river man woman eats bread sky is blue ##s ##ing ##ed . , ! ? ' é".split()
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EPS = 1e-6


@dataclass(frozen=True)
class TinyEncoder:
    """What a file is made of."""

    architecture: str = "bert"
    n_layers: int = 3
    n_embd: int = 64
    n_heads: int = 4
    n_ff: int = 96
    n_ctx: int = 48
    pooling: int | None = 1
    labels: int = 0
    """Scores of a classifier; 0: there is none."""
    dense: bool = True
    """The classifier has a hidden layer."""
    fused_qkv: bool = False
    window: int = 0
    n_kv_heads: int = 0
    """0: as many as query heads."""
    head_dim: int = 0
    """0: the embedding's share."""
    n_dense: int = 0
    """Numbers between two dense layers after the pooling; 0: there are none."""
    n_experts: int = 0
    """Experts of every second layer, of which a token takes two; 0: there are none."""
    experts_bias: bool = False
    """A vector is added to what the experts give."""
    period: int = 3
    """Of so many layers one has no window."""
    activation: str | None = None
    """What a file of modern-bert says of it; None: nothing, which means gelu."""
    n_tokens: int = 0
    """Rows of the embedding; 0: one for each of the words."""
    seed: int = 1

    @property
    def n_vocab(self) -> int:
        return self.n_tokens or len(SPECIAL) + len(WORDS)

    @property
    def gemma(self) -> bool:
        return self.architecture == "gemma-embedding"

    @property
    def e(self) -> int:
        return self.head_dim or self.n_embd // self.n_heads

    @property
    def kv(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def biased(self) -> bool:
        """Matrices, but for experts' ones, have biases."""
        return self.architecture in ("bert", "nomic-bert-moe")

    def is_windowed(self, i: int) -> bool:
        place = self.period - 1 if self.gemma else 0
        modern = self.architecture == "modern-bert"
        return bool(self.window) and (modern or self.gemma) and i % self.period != place


def tensors(case: TinyEncoder) -> dict[str, F64]:
    """The tensors of a file, float32, by name."""
    rng = np.random.default_rng(case.seed)
    d, f, made = case.n_embd, case.n_ff, {}

    def matrix(name: str, *shape: int, std: float = 0.0) -> None:
        made[name] = rng.normal(0, std or shape[-1] ** -0.5, shape)

    def norm(name: str, bias: bool) -> None:
        made[f"{name}.weight"] = rng.normal(1, 0.2, d)
        if bias:
            made[f"{name}.bias"] = rng.normal(0, 0.1, d)

    bert, modern = case.architecture == "bert", case.architecture == "modern-bert"
    if case.gemma:
        return _gemma_tensors(case, rng)
    matrix("token_embd.weight", case.n_vocab, d, std=1.0)
    if bert:
        matrix("position_embd.weight", case.n_ctx, d, std=0.5)
    if not modern:
        matrix("token_types.weight", 2, d, std=0.5)
    norm("token_embd_norm", not modern)
    for i in range(case.n_layers):
        linears = {"attn_output": (d, d), "ffn_down": (d, f)}
        if bert and not case.fused_qkv:
            linears |= {f"attn_{part}": (d, d) for part in "qkv"}
        else:
            linears["attn_qkv"] = (3 * d, d)
        linears["ffn_up"] = (2 * f, d) if modern else (f, d)
        if case.architecture == "nomic-bert":
            linears["ffn_gate"] = (f, d)
        if case.n_experts and i % 2 == 1:
            del linears["ffn_up"], linears["ffn_down"]
            matrix(f"blk.{i}.ffn_gate_inp.weight", case.n_experts, d, std=d**-0.25)
            matrix(f"blk.{i}.ffn_up_exps.weight", case.n_experts, f, d)
            matrix(f"blk.{i}.ffn_down_exps.weight", case.n_experts, d, f)
            if case.experts_bias:
                made[f"blk.{i}.ffn_exps.bias"] = rng.normal(0, 0.3, d)
        for name, shape in linears.items():
            matrix(f"blk.{i}.{name}.weight", *shape)
            if case.biased:
                made[f"blk.{i}.{name}.bias"] = rng.normal(0, 0.1, shape[0])
        if modern:
            if i:
                norm(f"blk.{i}.attn_norm", False)
            norm(f"blk.{i}.ffn_norm", False)
        else:
            norm(f"blk.{i}.attn_output_norm", True)
            norm(f"blk.{i}.layer_output_norm", True)
    if modern:
        norm("output_norm", False)
    if case.labels:
        if case.dense:
            matrix("cls.weight", d, d)
            made["cls.bias"] = rng.normal(0, 0.1, d)
        matrix("cls.output.weight", case.labels, d)
        made["cls.output.bias"] = rng.normal(0, 0.1, case.labels)
    return {name: value.astype(np.float32) for name, value in made.items()}


def _gemma_tensors(case: TinyEncoder, rng: np.random.Generator) -> dict[str, F64]:
    d, f, n_q, n_kv = case.n_embd, case.n_ff, case.n_heads * case.e, case.kv * case.e
    matrices = {"token_embd": (case.n_vocab, d)}
    norms = {"output_norm": d}
    for i in range(case.n_layers):
        matrices |= {f"blk.{i}.attn_q": (n_q, d), f"blk.{i}.attn_output": (d, n_q)}
        matrices |= {f"blk.{i}.attn_{part}": (n_kv, d) for part in "kv"}
        matrices |= {f"blk.{i}.ffn_{part}": (f, d) for part in ("gate", "up")}
        matrices[f"blk.{i}.ffn_down"] = (d, f)
        norms |= {f"blk.{i}.attn_{part}_norm": case.e for part in "qk"}
        names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        norms |= {f"blk.{i}.{name}": d for name in names}
    if case.n_dense:
        matrices |= {"dense_2": (case.n_dense, d), "dense_3": (d, case.n_dense)}
    made = {name: rng.normal(0, shape[-1] ** -0.5, shape) for name, shape in matrices.items()}
    made |= {name: rng.normal(1, 0.2, n) for name, n in norms.items()}
    return {f"{name}.weight": value.astype(np.float32) for name, value in made.items()}


def write(path: Path, case: TinyEncoder, extra: Mapping[str, Any] | None = None) -> Path:
    """The GGUF file of a case. extra: integers that replace keys of the architecture."""
    writer = gguf.GGUFWriter(path, case.architecture)
    writer.add_name(f"tiny {case.architecture}")
    numbers = {
        "block_count": case.n_layers,
        "context_length": case.n_ctx,
        "embedding_length": case.n_embd,
        "feed_forward_length": case.n_ff,
        "attention.head_count": case.n_heads,
    }
    if case.pooling is not None:
        numbers["pooling_type"] = case.pooling
    if case.n_experts:
        numbers |= {"expert_count": case.n_experts, "expert_used_count": 2, "moe_every_n_layers": 2}
    if case.window:
        numbers["attention.sliding_window"] = case.window
    if case.gemma:
        numbers |= {"attention.head_count_kv": case.kv, "attention.key_length": case.e}
        numbers |= {"attention.value_length": case.e}
        numbers |= {"attention.sliding_window_pattern": case.period} if case.period != 6 else {}
    if case.n_dense:
        numbers |= {"dense_2_feat_in": case.n_embd, "dense_2_feat_out": case.n_dense}
        numbers |= {"dense_3_feat_in": case.n_dense, "dense_3_feat_out": case.n_embd}
    for key, value in (numbers | dict(extra or {})).items():
        writer.add_uint32(f"{case.architecture}.{key}", value)
    (writer.add_layer_norm_rms_eps if case.gemma else writer.add_layer_norm_eps)(EPS)
    writer.add_causal_attention(False)
    if case.activation is not None:
        writer.add_string(f"{case.architecture}.hidden_activation", case.activation)
    if case.architecture != "bert":
        writer.add_rope_freq_base(1000.0)
    if case.labels > 1:
        writer.add_classifier_output_labels([f"label {i}" for i in range(case.labels)])
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    spelt = [w.removeprefix("##") if w.startswith("##") else f"▁{w}" for w in WORDS]
    writer.add_token_list([*SPECIAL, *spelt])
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(WORDS))
    for add, token in (
        (writer.add_pad_token_id, 0),
        (writer.add_unk_token_id, 1),
        (writer.add_bos_token_id, 2),
        (writer.add_sep_token_id, 3),
        (writer.add_mask_token_id, 4),
    ):
        add(token)
    for name, value in tensors(case).items():
        writer.add_tensor(name, value)
    finish(writer)
    return path
