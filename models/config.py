"""The configuration of a model, read from GGUF metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from ..system.text import brief
from .architectures import ARCHITECTURES, Architecture
from .errors import ModelError
from .metadata import Keys

# Bounds that no real model reaches: a hostile file must not make kvarn allocate absurd memory.
MAX_LAYERS = 512  # llama.cpp's LLAMA_MAX_LAYERS
MAX_HEADS = 4096
MAX_HEAD_DIM = 256  # of the attention kernels
MAX_EMBD = 1 << 17
MAX_FF = 1 << 20
MAX_VOCAB = 1 << 19  # twice the largest published one
MAX_CONTEXT = (1 << 31) - 1

# llama.cpp's defaults for keys that a file may omit.
ROPE_BASE = 10_000.0
YARN_BETA_FAST = 32.0
YARN_BETA_SLOW = 1.0
YARN_BETAS = (1e-3, 1e6)
"""Smallest and largest value of both."""
LEAST_FACTOR, MAX_FACTOR, MAX_LOG_MULTIPLIER = 1e-6, 1e6, 1e3

RopeScaling = Literal["none", "linear", "yarn", "longrope"]


@dataclass(frozen=True)
class RopeConfig:
    """One rotation: angles(p, i) = p * scale * base^(-2i / n_rot), amplitude `amplitude`.

    `scaling` "yarn" blends scaled and unscaled angles by frequency (see `rope.py`).
    """

    n_rot: int
    base: float
    scale: float
    scaling: RopeScaling
    n_ctx_orig: int
    amplitude: float
    beta_fast: float = YARN_BETA_FAST
    beta_slow: float = YARN_BETA_SLOW


@dataclass(frozen=True)
class LayerConfig:
    """The parameters of one layer's attention."""

    window: int | None
    """A query at p sees keys p - window + 1 .. p; None: all."""
    rope: RopeConfig | None
    """None: the layer does not rotate."""
    attention_scale: float
    """Factor on q·k."""
    attention_softcap: float
    """Scores become cap * tanh(score / cap); 0: no cap."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one model, and the differences between its layers."""

    architecture: Architecture
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_embd: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    n_ctx_orig: int
    """Context of the original training, before positions were scaled."""
    norm_eps: float
    embedding_scale: float
    final_softcap: float
    logit_scale: float
    temperature_scale: float
    """Queries at p are multiplied by temperature_scale * ln(1 + p // n_ctx_orig) + 1."""
    rope_tensors: Literal["none", "freqs", "longrope"]
    layers: tuple[LayerConfig, ...]

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> ModelConfig:
        """Read and check a file's metadata.

        Raises `ModelError` for an architecture that is not in `ARCHITECTURES`, a missing key, or a
        value outside its bounds. The message names the key, its value and the expected values.
        """
        architecture = _architecture(metadata)
        keys = Keys(metadata, architecture.name)
        keys.refuse("expert_count", 0, "mixtures of experts are not supported")
        keys.refuse("attention.causal", True, "only causal models are supported")
        n_layers = keys.integer("block_count", high=MAX_LAYERS)
        n_embd = keys.integer("embedding_length", high=MAX_EMBD)
        n_ctx_train = keys.integer("context_length", high=MAX_CONTEXT)
        n_heads, n_kv_heads, head_dim = _heads(keys, n_embd)
        n_ctx_orig = keys.integer(
            "rope.scaling.original_context_length", n_ctx_train, high=MAX_CONTEXT
        )
        rope = _rope(keys, architecture, head_dim, n_ctx_orig)
        divisor = head_dim
        if n_layers == architecture.scale_by_embedding_at:
            divisor = n_embd // n_heads
        eps = "layer_norm_rms_epsilon" if architecture.norm == "rms" else "layer_norm_epsilon"
        final_softcap = architecture.final_softcap
        if final_softcap is not None:
            final_softcap = keys.number("final_logit_softcapping", final_softcap)
        return ModelConfig(
            architecture=architecture,
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            n_embd=n_embd,
            n_ff=keys.integer("feed_forward_length", high=MAX_FF),
            n_vocab=_vocabulary(metadata, keys),
            n_ctx_train=n_ctx_train,
            n_ctx_orig=n_ctx_orig,
            norm_eps=keys.number(f"attention.{eps}", high=1.0),
            embedding_scale=math.sqrt(n_embd) if architecture.scaled_embedding else 1.0,
            final_softcap=final_softcap or 0.0,
            # llama.cpp takes a scale of 0 for none.
            logit_scale=(keys.number("logit_scale") or 1.0) if architecture.logit_scale else 1.0,
            temperature_scale=(
                keys.number("attention.temperature_scale", 0.0) if architecture.temperature else 0.0
            ),
            rope_tensors=_rope_tensors(architecture, rope),
            layers=_layers(keys, architecture, n_layers, rope, 1.0 / math.sqrt(divisor)),
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


def _heads(keys: Keys, n_embd: int) -> tuple[int, int, int]:
    n_heads = keys.integer("attention.head_count", high=MAX_HEADS)
    n_kv_heads = keys.integer("attention.head_count_kv", n_heads, high=MAX_HEADS)
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


def _rope(keys: Keys, architecture: Architecture, head_dim: int, n_ctx_orig: int) -> RopeConfig:
    n_rot = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if n_rot % 2 or (architecture.whole_head_rope and n_rot != head_dim):
        expected = str(head_dim) if architecture.whole_head_rope else "an even number"
        raise keys.error("rope.dimension_count", n_rot, expected)
    scaling = keys.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise keys.error("rope.scaling.type", scaling, "none, linear, yarn or longrope")
    old_factor = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", old_factor, high=MAX_FACTOR)
    if scaling == "none" or factor == 0.0:
        factor = 1.0
    if factor < LEAST_FACTOR:
        raise keys.error("rope.scaling.factor", factor, f"0 or a number from {LEAST_FACTOR:g}")
    amplitude, beta_fast, beta_slow = _attention_factor(keys), YARN_BETA_FAST, YARN_BETA_SLOW
    if scaling == "yarn":
        key = "rope.scaling.yarn_log_multiplier"
        log_multiplier = keys.number(key, 0.0, high=MAX_LOG_MULTIPLIER)
        amplitude *= yarn_amplitude(factor, log_multiplier)
        low, high = YARN_BETAS
        beta_fast = keys.number("rope.scaling.yarn_beta_fast", beta_fast, low=low, high=high)
        beta_slow = keys.number("rope.scaling.yarn_beta_slow", beta_slow, low=low, high=high)
    return RopeConfig(
        n_rot=n_rot,
        base=keys.number("rope.freq_base", ROPE_BASE, low=1.0001, high=1e12),
        scale=1.0 / factor,
        scaling=cast(RopeScaling, scaling),
        n_ctx_orig=n_ctx_orig,
        amplitude=amplitude,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
    )


def _attention_factor(keys: Keys) -> float:
    """A factor on the amplitude, in addition to that of the kind of scaling."""
    return keys.number("rope.scaling.attn_factor", 1.0, high=1e6)


def yarn_amplitude(factor: float, log_multiplier: float = 0.0) -> float:
    """m(1) / m(log_multiplier) with m(k) = 1 + 0.1 k ln(factor), m(k) = 1 for factors up to 1.

    Source: YaRN (arXiv 2309.00071) section 3.4, as llama.cpp's context applies it.
    """
    growth = 0.1 * math.log(factor) if factor > 1.0 else 0.0
    return (1.0 + growth) / (1.0 + log_multiplier * growth)


def _rope_tensors(
    architecture: Architecture, rope: RopeConfig
) -> Literal["none", "freqs", "longrope"]:
    if architecture.rope_tensors == "by scaling":
        return "longrope" if rope.scaling == "longrope" else "freqs"
    return architecture.rope_tensors


def _layers(
    keys: Keys, architecture: Architecture, n_layers: int, rope: RopeConfig, scale: float
) -> tuple[LayerConfig, ...]:
    windowed, window = _windowed(keys, architecture, n_layers)
    windowed_rope = _windowed_rope(keys, architecture, rope) if any(windowed) else rope
    softcap = architecture.attention_softcap
    if softcap:
        softcap = keys.number("attn_logit_softcapping", softcap, low=1e-3)

    def rotated(index: int) -> bool:
        if architecture.rope_layers == "windowed":
            return windowed[index]
        return architecture.rope_layers == "all" or (index + 1) % 4 != 0

    def layer(index: int) -> LayerConfig:
        layer_rope = windowed_rope if windowed[index] else rope
        return LayerConfig(
            window=window if windowed[index] else None,
            rope=layer_rope if rotated(index) else None,
            attention_scale=scale,
            attention_softcap=softcap,
        )

    return tuple(layer(index) for index in range(n_layers))


def _windowed(
    keys: Keys, architecture: Architecture, n_layers: int
) -> tuple[tuple[bool, ...], int | None]:
    """Which layers are windowed, and the window."""
    windowing = architecture.windowing
    if windowing is None:
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


def _windowed_rope(keys: Keys, architecture: Architecture, rope: RopeConfig) -> RopeConfig:
    windowing = architecture.windowing
    # llama.cpp reads the windowed base of cohere2, but rotates by the global one.
    if windowing is None or architecture.rope_layers == "windowed":
        return rope
    base = keys.number(
        "rope.freq_base_swa", windowing.rope_base or rope.base, low=1.0001, high=1e12
    )
    if windowing.scaled:
        return replace(rope, base=base)
    return replace(rope, base=base, scale=1.0, amplitude=_attention_factor(keys))
