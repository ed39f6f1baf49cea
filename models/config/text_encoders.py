"""The configuration of a text encoder, read from GGUF metadata.

Source: llama.cpp (`src/models/bert.cpp`, `nomic-bert-moe.cpp`, `modern-bert.cpp`,
`gemma-embedding.cpp`).
Imports no Numba.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...system.text import brief
from ..errors import ModelError
from .architecture import Architecture
from .architectures import TEXT_ENCODERS
from .attention_keys import Heads, HeadSizes, read_attention, read_windows
from .bounds import MAX_CONTEXT, MAX_EMBD, MAX_FF, MAX_HEADS, MAX_LAYERS, MAX_WHOLE_HEAD_DIM
from .expert_keys import read_feed_forwards
from .layers import LayerConfig
from .metadata import Keys, count_tokens
from .model import ModelConfig, read_norm_eps
from .rope_keys import read_rope

MAX_TOKEN_TYPES = 64
_ACTIVATIONS: dict[str, Literal["gelu", "silu"]] = {
    **dict.fromkeys(("gelu", "geglu", "gelu_pytorch_tanh"), "gelu"),
    **dict.fromkeys(("silu", "swish", "swiglu"), "silu"),
}
"""Names in files of `modern-bert`, as Granite Embedding R2 has them."""


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(ModelConfig):
    """Sizes of one text encoder. The window of a layer lies half before, half after each token."""

    n_token_types: int
    n_labels: int
    """Numbers that a classifier gives."""
    n_dense: int
    """Numbers between two dense layers that follow the pooling; 0: there are none."""

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> TextEncoderConfig:
        """Read and check a file's metadata. Raises `ModelError` that names the key, its value and
        the expected values."""
        name = metadata.get("general.architecture")
        if not isinstance(name, str) or name not in TEXT_ENCODERS:
            raise ModelError(
                f"cannot configure the model: general.architecture is {brief(name)}, expected a "
                f"text encoder: {', '.join(TEXT_ENCODERS)}"
            )
        keys = Keys(metadata, name)
        architecture = _activated(keys, TEXT_ENCODERS[name])
        keys.refuse("attention.causal", False, "a text encoder reads in both directions")
        keys.refuse("rope.scaling.type", "none", "positions of text encoders are not scaled")
        n_embd = keys.integer("embedding_length", high=MAX_EMBD)
        n_layers = keys.integer("block_count", high=MAX_LAYERS)
        n_ctx = keys.integer("context_length", high=MAX_CONTEXT)
        n_vocab, types = count_tokens(metadata), Keys(metadata, "tokenizer.ggml")
        labels = metadata.get(f"{name}.classifier.output_labels")
        if labels is not None and (not isinstance(labels, list) or len(labels) > MAX_EMBD):
            raise keys.error("classifier.output_labels", labels, "a list of names")
        heads = _heads(keys, architecture, n_embd)
        sizes = HeadSizes(heads, heads, *read_windows(keys, architecture, n_layers))
        rope = read_rope(keys, architecture, heads.head_dim, n_ctx)
        attention = read_attention(keys, architecture, sizes, rope, heads.head_dim**-0.5)
        feed_forwards = read_feed_forwards(keys, architecture.experts, n_layers, n_vocab)
        return TextEncoderConfig(
            architecture=architecture,
            n_layers=n_layers,
            n_heads=heads.n_heads,
            n_kv_heads=heads.n_kv_heads,
            head_dim=heads.head_dim,
            n_embd=n_embd,
            n_vocab=n_vocab,
            n_ctx_train=n_ctx,
            n_ctx_orig=n_ctx,
            norm_eps=read_norm_eps(keys, architecture),
            embedding_scale=math.sqrt(n_embd) if architecture.scaled_embedding else 1.0,
            layers=tuple(LayerConfig(x, None, y) for x, y in zip(attention, feed_forwards)),
            n_token_types=types.integer("token_type_count", 1, high=MAX_TOKEN_TYPES),
            n_labels=len(labels) if labels else 1,
            n_dense=keys.integer("dense_2_feat_out", 0, low=0, high=MAX_FF),
        )


def _activated(keys: Keys, architecture: Architecture) -> Architecture:
    """With the activation that the file names, where it may name one."""
    if not architecture.fused_gate_up:
        return architecture
    name = keys.text("hidden_activation", "gelu")
    if name not in _ACTIVATIONS:
        raise keys.error("hidden_activation", name, ", ".join(_ACTIVATIONS))
    return replace(architecture, activation=_ACTIVATIONS[name])


def _heads(keys: Keys, architecture: Architecture, n_embd: int) -> Heads:
    """Those with norms of their own may have any size, and share keys and values."""
    n_heads = keys.integer("attention.head_count", high=MAX_HEADS)
    n_kv_heads = keys.integer("attention.head_count_kv", n_heads, high=MAX_HEADS)
    is_free = architecture.qk_norm == "head"
    sized = is_free and keys.get("attention.key_length") is not None
    if not sized and (n_embd % n_heads or n_embd // n_heads > MAX_WHOLE_HEAD_DIM):
        raise keys.error(
            "attention.head_count",
            n_heads,
            f"a divisor of {n_embd} that makes heads of up to {MAX_WHOLE_HEAD_DIM}",
        )
    head_dim = n_embd // n_heads
    if is_free:
        head_dim = keys.integer("attention.key_length", head_dim, high=MAX_WHOLE_HEAD_DIM)
        keys.refuse("attention.value_length", head_dim, "keys and values have one length")
        if n_heads % n_kv_heads:
            raise keys.error("attention.head_count_kv", n_kv_heads, f"a divisor of {n_heads} heads")
    elif n_kv_heads != n_heads:
        raise keys.error("attention.head_count_kv", n_kv_heads, f"{n_heads}")
    if architecture.rope_layers != "none" and head_dim % 2:
        raise keys.error("attention.head_count", n_heads, "heads of an even size")
    return Heads(n_heads, n_kv_heads, head_dim)
