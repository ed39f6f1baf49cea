"""The configuration of a model, read from GGUF metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..system.text import brief
from .architectures import ARCHITECTURES, Architecture
from .bounds import (
    MAX_CONTEXT,
    MAX_EMBD,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
)
from .errors import ModelError
from .expert_keys import read_feed_forwards
from .layer_config import AttentionConfig, LayerConfig, RecurrentConfig, RopeConfig
from .metadata import Keys
from .recurrent_keys import kv_heads, read_recurrent
from .rope_keys import read_rope, read_windowed_rope


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one model, and the differences between its layers."""

    architecture: Architecture
    n_layers: int
    n_drafting: int
    """Layers after them in the file, which draft tokens: they are left out."""
    n_heads: int
    n_kv_heads: int
    head_dim: int
    """Of the layers without a window, as `n_kv_heads`: those in which methods choose tokens."""
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_ctx_orig: int
    """Context of the original training, before positions were scaled."""
    norm_eps: float
    embedding_scale: float
    residual_scale: float
    """Factor on what mixers and feed-forwards add to x."""
    final_softcap: float
    logit_scale: float
    temperature_scale: float
    """Queries at p are multiplied by temperature_scale * ln(1 + p // n_ctx_orig) + 1."""
    rope_tensors: Literal["none", "freqs", "longrope"]
    layers: tuple[LayerConfig, ...]

    @cached_property
    def kv_layers(self) -> tuple[AttentionConfig, ...]:
        """The layers that have keys and values. Stores, packs and methods count only these."""
        mixers = (layer.mixer for layer in self.layers)
        return tuple(mixer for mixer in mixers if isinstance(mixer, AttentionConfig))

    @property
    def n_kv_layers(self) -> int:
        """How many layers have keys and values."""
        return len(self.kv_layers)

    @cached_property
    def state_shapes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Of each layer without keys and values, the float32 arrays that it carries on."""
        mixers = (layer.mixer for layer in self.layers)
        return tuple(m.state_shapes for m in mixers if not isinstance(m, AttentionConfig))

    def number_of(self, index: int) -> int:
        """The number of layer `index` among those that have keys and values, or a state, as it."""
        kinds = [isinstance(layer.mixer, AttentionConfig) for layer in self.layers]
        return kinds[:index].count(kinds[index])

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> ModelConfig:
        """Read and check a file's metadata.

        Raises `ModelError` for an architecture that is not in `ARCHITECTURES`, a missing key, or a
        value outside its bounds. The message names the key, its value and the expected values.
        """
        architecture = _architecture(metadata)
        keys = Keys(metadata, architecture.name)
        keys.refuse("attention.causal", True, "only causal models are supported")
        n_layers = keys.integer("block_count", high=MAX_LAYERS)
        # The last layers of a file may draft tokens for the others.
        n_drafting = keys.integer("nextn_predict_layers", 0, low=0, high=n_layers - 1)
        n_layers -= n_drafting
        n_embd = keys.integer("embedding_length", high=MAX_EMBD)
        n_ctx_train = keys.integer("context_length", high=MAX_CONTEXT)
        n_heads, n_kv_heads, head_dim = _heads(keys, architecture, n_embd)
        n_ctx_orig = keys.integer(
            "rope.scaling.original_context_length", n_ctx_train, high=MAX_CONTEXT
        )
        if architecture.scales:
            keys.refuse("rope.scaling.finetuned", True, "only layers that rotate are supported")
        recurrent = read_recurrent(keys, architecture, n_layers, n_embd)
        rope = read_rope(keys, architecture, head_dim, n_ctx_orig)
        divisor = head_dim
        if n_layers == architecture.scale_by_embedding_at:
            divisor = n_embd // n_heads
        attention_scale = _scale(keys, architecture, "attention.scale", 1.0 / math.sqrt(divisor))
        embedding_scale = math.sqrt(n_embd) if architecture.scaled_embedding else 1.0
        eps = "layer_norm_rms_epsilon" if architecture.norm == "rms" else "layer_norm_epsilon"
        final_softcap = architecture.final_softcap
        if final_softcap is not None:
            final_softcap = keys.number("final_logit_softcapping", final_softcap)
        return ModelConfig(
            architecture=architecture,
            n_layers=n_layers,
            n_drafting=n_drafting,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            n_embd=n_embd,
            n_vocab=_vocabulary(metadata, keys),
            n_ctx_train=n_ctx_train,
            n_ctx_orig=n_ctx_orig,
            norm_eps=keys.number(f"attention.{eps}", high=1.0),
            embedding_scale=_scale(keys, architecture, "embedding_scale", embedding_scale),
            residual_scale=_scale(keys, architecture, "residual_scale", 1.0),
            final_softcap=final_softcap or 0.0,
            logit_scale=_logit_scale(keys, architecture),
            temperature_scale=(
                keys.number("attention.temperature_scale", 0.0) if architecture.temperature else 0.0
            ),
            rope_tensors=_rope_tensors(architecture, rope),
            layers=_layers(
                keys, architecture, (n_kv_heads, head_dim), rope, attention_scale, recurrent
            ),
        )


def _architecture(metadata: Mapping[str, Any]) -> Architecture:
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        value = brief(name) if name is not None else "missing"
        raise ModelError(
            f"cannot configure the model: general.architecture is {value}, supported are "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[name]


def _scale(keys: Keys, architecture: Architecture, key: str, default: float) -> float:
    """A factor that only some architectures read. llama.cpp takes 0 for none."""
    return (keys.number(key, 0.0) or default) if architecture.scales else default


def _logit_scale(keys: Keys, architecture: Architecture) -> float:
    if architecture.logit_scale == "none":
        return 1.0
    if architecture.logit_scale == "multiplies":
        return keys.number("logit_scale") or 1.0  # llama.cpp takes 0 for none
    return 1.0 / keys.number("logit_scale", low=1e-6)


def _heads(keys: Keys, architecture: Architecture, n_embd: int) -> tuple[int, int, int]:
    n_heads = keys.integer("attention.head_count", high=MAX_HEADS)
    n_kv_heads = kv_heads(keys, architecture, n_heads, MAX_HEADS)
    if n_heads % n_kv_heads:
        raise keys.error("attention.head_count_kv", n_kv_heads, f"a divisor of {n_heads} heads")
    if keys.get("attention.key_length") is None and n_embd // n_heads < 1:
        raise keys.error("attention.head_count", n_heads, f"at most n_embd = {n_embd}")
    head_dim = keys.integer("attention.key_length", n_embd // n_heads, high=MAX_HEAD_DIM)
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise keys.error("attention.key_length", head_dim, f"an even number up to {MAX_HEAD_DIM}")
    for key in ("value_length", "key_length_swa", "value_length_swa"):
        # llama.cpp's default for the value length does not follow the key length.
        default = n_embd // n_heads if key == "value_length" else head_dim
        if keys.integer(f"attention.{key}", default, low=0, high=MAX_EMBD) != head_dim:
            raise keys.error(f"attention.{key}", keys.get(f"attention.{key}"), f"{head_dim}")
    return n_heads, n_kv_heads, head_dim


def _vocabulary(metadata: Mapping[str, Any], keys: Keys) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return keys.integer("vocab_size", high=MAX_VOCAB)
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= MAX_VOCAB:
        raise ModelError(
            f"cannot configure the model: tokenizer.ggml.tokens is {brief(tokens)}, expected a "
            f"list of 1 to {MAX_VOCAB:,} strings"
        )
    return len(tokens)


def _rope_tensors(
    architecture: Architecture, rope: RopeConfig
) -> Literal["none", "freqs", "longrope"]:
    if architecture.rope_tensors == "by scaling":
        return "longrope" if rope.scaling == "longrope" else "freqs"
    return architecture.rope_tensors


def _layers(
    keys: Keys,
    architecture: Architecture,
    heads: tuple[int, int],
    rope: RopeConfig,
    scale: float,
    recurrent: tuple[RecurrentConfig | None, ...],
) -> tuple[LayerConfig, ...]:
    n_layers = len(recurrent)
    feed_forwards = read_feed_forwards(keys, architecture.experts, n_layers)
    windowed, window = _windowed(keys, architecture, n_layers)
    windowed_rope = read_windowed_rope(keys, architecture, rope) if any(windowed) else rope
    softcap = architecture.attention_softcap
    if softcap:
        softcap = keys.number("attn_logit_softcapping", softcap, low=1e-3)

    def rotated(index: int) -> bool:
        if architecture.rope_layers == "windowed":
            return window is None or windowed[index]
        return architecture.rope_layers == "all" or (index + 1) % 4 != 0

    def layer(index: int) -> LayerConfig:
        layer_rope = windowed_rope if windowed[index] else rope
        attention = AttentionConfig(
            *heads,
            window=window if windowed[index] else None,
            rope=layer_rope if rotated(index) else None,
            attention_scale=scale,
            attention_softcap=softcap,
            sinks=architecture.attention_sinks,
        )
        return LayerConfig(recurrent[index] or attention, feed_forwards[index])

    return tuple(layer(index) for index in range(n_layers))


def _windowed(
    keys: Keys, architecture: Architecture, n_layers: int
) -> tuple[tuple[bool, ...], int | None]:
    """Which layers are windowed, and the window."""
    windowing = architecture.windowing
    if windowing is None or windowing.only_at not in (None, n_layers):
        return (False,) * n_layers, None
    key = "attention.sliding_window"
    value = keys.get(key)
    given = isinstance(value, (list, tuple, np.ndarray)) or value not in (None, 0)
    if not (windowing.required or windowing.window is not None or given):
        return (False,) * n_layers, None
    window = keys.integer(key, windowing.window, high=MAX_CONTEXT)
    key = "attention.sliding_window_pattern"
    pattern = keys.get(key)
    if isinstance(pattern, (list, tuple, np.ndarray)):
        flags = [f for f in pattern[:n_layers] if isinstance(f, (int, np.integer, np.bool_))]
        if len(flags) < n_layers:
            raise keys.error(key, pattern, f"a number, or one flag for each of {n_layers} layers")
        return tuple(bool(flag) for flag in flags), window
    period = keys.integer(key, windowing.period, low=0, high=MAX_CONTEXT)
    return tuple(period == 0 or i % period < period - 1 for i in range(n_layers)), window
