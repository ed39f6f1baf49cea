"""The configuration of a model, read from GGUF metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ...system.text import brief
from ..errors import ModelError
from .architecture import Architecture
from .architectures import ARCHITECTURES, TEXT_ENCODERS
from .attention_keys import read_attention, read_heads
from .bounds import (
    MAX_CONTEXT,
    MAX_EMBD,
    MAX_LAYERS,
    MAX_VOCAB,
)
from .expert_keys import read_feed_forwards
from .latent_keys import latent_scale, read_latent_heads
from .layers import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    RecurrentConfig,
    RopeConfig,
)
from .metadata import Keys, count_tokens
from .recurrent_keys import read_recurrent
from .rope_keys import read_rope


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of one model, and the differences between its layers."""

    architecture: Architecture
    n_layers: int
    n_drafting: int = 0
    """Layers after them in the file, which draft tokens: they are left out."""
    n_heads: int
    n_kv_heads: int
    head_dim: int
    """Of the layers without a window, as the numbers of heads: methods choose tokens in those."""
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_ctx_orig: int
    """Context of the original training, before positions were scaled."""
    norm_eps: float
    embedding_scale: float
    residual_scale: float = 1.0
    """Factor on what mixers and feed-forwards add to x."""
    final_softcap: float = 0.0
    logit_scale: float = 1.0
    temperature_scale: float = 0.0
    """Queries at p are multiplied by temperature_scale * ln(1 + p // n_ctx_orig) + 1."""
    rope_tensors: Literal["none", "freqs", "longrope"] = "none"
    n_embd_per_layer: int = 0
    """Numbers of a token's embedding for one layer; 0: there are none."""
    layers: tuple[LayerConfig, ...]

    @cached_property
    def attention_layers(self) -> tuple[AttentionConfig, ...]:
        """The layers with attention. Methods, and what is told of them, count only these."""
        return tuple(layer.attention for layer in self.layers if layer.attention is not None)

    @cached_property
    def kv_layers(self) -> tuple[AttentionConfig, ...]:
        """Those that have keys and values. Stores, packs and indexes count only these."""
        return tuple(layer for layer in self.attention_layers if layer.reads is None)

    @cached_property
    def kv_numbers(self) -> tuple[int, ...]:
        """Of each layer with attention, the number among `kv_layers` of the one that it reads."""
        numbers: dict[int, int] = {}
        for index, layer in enumerate(self.layers):
            if layer.attention is not None:
                source = layer.attention.reads
                known = len(set(numbers.values())) if source is None else numbers[source]
                numbers[index] = known
        return tuple(numbers.values())

    @cached_property
    def one_geometry(self) -> bool:
        """Whether all layers with attention have as many KV heads, of one size, and keys and values
        of their own."""
        sizes = {(layer.n_kv_heads, layer.head_dim) for layer in self.attention_layers}
        return len(sizes) == 1 and not self.shares_kv

    @cached_property
    def shares_kv(self) -> bool:
        """Whether layers attend to the keys and values of others."""
        return len(self.attention_layers) > self.n_kv_layers

    @property
    def n_kv_layers(self) -> int:
        """How many layers have keys and values."""
        return len(self.kv_layers)

    @cached_property
    def state_shapes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Of each layer with a state, the float32 arrays that it carries on."""
        states = (layer.state for layer in self.layers)
        return tuple(state.state_shapes for state in states if state is not None)

    def attention_number(self, index: int) -> int:
        """The number of layer `index` among those that have attention."""
        return sum(layer.attention is not None for layer in self.layers[:index])

    def state_number(self, index: int) -> int:
        """The number of layer `index` among those that carry a state."""
        return sum(layer.state is not None for layer in self.layers[:index])

    @cached_property
    def last_storing(self) -> int:
        """The last layer that stores something of each token: those after it mix only what is
        stored, for any tokens that are wanted."""
        storing = [
            layer.state is not None
            or (layer.attention is not None and layer.attention.reads is None)
            for layer in self.layers
        ]
        return len(storing) - 1 - storing[::-1].index(True)

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
        heads = (
            read_latent_heads(keys, n_layers)
            if architecture.latent
            else read_heads(keys, architecture, n_layers, n_embd)
        )
        n_heads, n_kv_heads, head_dim = heads.whole
        n_ctx_orig = keys.integer(
            "rope.scaling.original_context_length", n_ctx_train, high=MAX_CONTEXT
        )
        rope = read_rope(keys, architecture, head_dim, n_ctx_orig)
        divisor = head_dim
        if n_layers == architecture.scale_by_embedding_at:
            divisor = n_embd // n_heads
        default = architecture.attention_scale or 1.0 / math.sqrt(divisor)
        if heads.latent is not None:
            default = latent_scale(keys, heads.latent, rope)
        attention_scale = _scale(keys, architecture, "attention.scale", default)
        embedding_scale = math.sqrt(n_embd) if architecture.scaled_embedding else 1.0
        n_vocab = _vocabulary(metadata, keys)
        layers = tuple(
            _layer(architecture, *parts)
            for parts in zip(
                read_recurrent(keys, architecture, n_layers, n_embd),
                read_attention(keys, architecture, heads, rope, attention_scale),
                read_feed_forwards(keys, architecture.experts, n_layers, n_vocab),
            )
        )
        if all(layer.attention is None for layer in layers):
            key = "feed_forward_length"
            raise keys.error(key, keys.get(key), "0 for a layer with attention")
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
            n_vocab=n_vocab,
            n_ctx_train=n_ctx_train,
            n_ctx_orig=n_ctx_orig,
            norm_eps=read_norm_eps(keys, architecture),
            embedding_scale=_scale(keys, architecture, "embedding_scale", embedding_scale),
            residual_scale=_scale(keys, architecture, "residual_scale", 1.0),
            final_softcap=final_softcap or 0.0,
            logit_scale=_logit_scale(keys, architecture),
            temperature_scale=(
                keys.number("attention.temperature_scale", 0.0) if architecture.temperature else 0.0
            ),
            rope_tensors=_rope_tensors(architecture, rope),
            n_embd_per_layer=(
                keys.integer("embedding_length_per_layer_input", 0, low=0, high=MAX_EMBD)
                if architecture.per_layer_embeddings
                else 0
            ),
            layers=layers,
        )


def is_adapter(metadata: Mapping[str, Any]) -> bool:
    """Whether a file's metadata are those of an adapter."""
    kind = metadata.get("general.type")
    return isinstance(kind, str) and kind == "adapter"


def refuse_adapter(metadata: Mapping[str, Any]) -> None:
    """Raises `ModelError` for the metadata of an adapter, which is no model."""
    if is_adapter(metadata):
        raise ModelError(
            "the file is an adapter, which changes a model and is none: give the model that it was "
            "made for, and the adapter with --lora FILE"
        )


def _architecture(metadata: Mapping[str, Any]) -> Architecture:
    refuse_adapter(metadata)
    name = metadata.get("general.architecture")
    if isinstance(name, str) and name in TEXT_ENCODERS:
        raise ModelError(
            f"the model is a text encoder ({name}), which makes vectors and generates no text: use "
            "`kvarn embed` or `kvarn rerank` (Python: kvarn.load_embedder)"
        )
    if not isinstance(name, str) or name not in ARCHITECTURES:
        value = brief(name) if name is not None else "missing"
        raise ModelError(
            f"cannot configure the model: general.architecture is {value}, supported are "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[name]


def _layer(
    architecture: Architecture,
    state: RecurrentConfig | None,
    attention: AttentionConfig,
    feed_forward: FeedForwardConfig | None,
) -> LayerConfig:
    """A layer with a state, if any, in the place of attention or beside it; or without a mixer."""
    rules = architecture.experts
    if rules is not None and rules.in_own_layers and feed_forward is not None:
        return LayerConfig(None, None, feed_forward)
    beside = architecture.recurrent == "mamba 2 beside attention"
    return LayerConfig(attention if beside or state is None else None, state, feed_forward)


def read_norm_eps(keys: Keys, architecture: Architecture) -> float:
    """The epsilon of the architecture's kind of norms."""
    key = "attention.layer_norm_epsilon"
    if architecture.norm == "layer":
        return keys.number(key, high=1.0)
    default = keys.number(key, high=1.0) if architecture.either_epsilon else None
    return keys.number("attention.layer_norm_rms_epsilon", default, high=1.0)


def _scale(keys: Keys, architecture: Architecture, key: str, default: float) -> float:
    """A factor that only some architectures read. llama.cpp takes 0 for none."""
    return (keys.number(key, 0.0) or default) if architecture.scales else default


def _logit_scale(keys: Keys, architecture: Architecture) -> float:
    if architecture.logit_scale == "none":
        return 1.0
    if architecture.logit_scale == "multiplies":
        return keys.number("logit_scale") or 1.0  # llama.cpp takes 0 for none
    default = 1.0 if architecture.logit_scale == "divides, if present" else None
    return 1.0 / keys.number("logit_scale", default, low=1e-6)


def _vocabulary(metadata: Mapping[str, Any], keys: Keys) -> int:
    if metadata.get("tokenizer.ggml.tokens") is None:
        return keys.integer("vocab_size", high=MAX_VOCAB)
    return count_tokens(metadata)


def _rope_tensors(
    architecture: Architecture, rope: RopeConfig
) -> Literal["none", "freqs", "longrope"]:
    if architecture.rope_tensors == "by scaling":
        return "longrope" if rope.scaling == "longrope" else "freqs"
    return architecture.rope_tensors
