"""The table of text encoders, and the configuration of one, read from GGUF metadata.

Source: llama.cpp (`src/models/bert.cpp`, `nomic-bert-moe.cpp`, `modern-bert.cpp`,
`gemma-embedding.cpp`).
Imports no Numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...ops.experts.routing import MOST_EXPERTS, Routing
from ...system.text import brief
from ..errors import ModelError
from .bounds import (
    MAX_CONTEXT,
    MAX_EMBD,
    MAX_FF,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WHOLE_HEAD_DIM,
)
from .layers import ExpertsConfig
from .metadata import Keys, count_tokens

MAX_TOKEN_TYPES = 64


@dataclass(frozen=True)
class TextEncoderArchitecture:
    """One GGUF architecture, by its differences from bert."""

    name: str
    pre_norms: bool = False
    """Norms of the inputs of attention and feed-forward, and of the last layer's output; otherwise
    x is normed after each of them has been added to it."""
    positions: Literal["table", "rope"] = "table"
    """A learned vector for each position, or rotated queries and keys (halves i, i + E/2)."""
    token_types: bool = True
    """Each token has the vector of its type, too: 0, or 1 in the second text of a pair."""
    activation: Literal["gelu", "silu"] = "gelu"
    gate: Literal["none", "ffn_gate", "ffn_up"] = "none"
    """The tensor of the gate, which is activated: its own, or the first half of `ffn_up`."""
    window_period: int = 0
    """Of each so many layers the first (of Gemma, the last) attends to all tokens, the others to a
    window around each; 0: there are no windows."""
    window_rope_base: float = 10_000.0
    """Default rope base of layers with a window."""
    experts: bool = False
    """Of each `moe_every_n_layers` layers the second has routed experts, without gates."""
    gemma: bool = False
    """As Gemma 3: norms by the root of the mean square, also of what attention and feed-forward
    give and of each query and key; heads of any size, which may share keys and values; a scaled
    embedding. Two dense layers may follow the pooling."""

    @property
    def norm(self) -> Literal["rms", "layer"]:
        """The kind of its norms."""
        return "rms" if self.gemma else "layer"


TEXT_ENCODERS: dict[str, TextEncoderArchitecture] = {
    architecture.name: architecture
    for architecture in (
        TextEncoderArchitecture("bert"),
        TextEncoderArchitecture("nomic-bert", positions="rope", activation="silu", gate="ffn_gate"),
        TextEncoderArchitecture("nomic-bert-moe", positions="rope", experts=True),
        TextEncoderArchitecture(
            "modern-bert",
            pre_norms=True,
            positions="rope",
            token_types=False,
            gate="ffn_up",
            window_period=3,
        ),
        TextEncoderArchitecture(
            "gemma-embedding",
            pre_norms=True,
            positions="rope",
            token_types=False,
            gate="ffn_gate",
            window_period=6,
            gemma=True,
        ),
    )
}


@dataclass(frozen=True)
class TextEncoderConfig:
    """Sizes of one text encoder."""

    architecture: TextEncoderArchitecture
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_embd: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    n_token_types: int
    norm_eps: float
    rope_base: float
    window: int
    """Tokens that the window of a layer spans, half of them on each side; 0: all."""
    windowed: tuple[bool, ...]
    """Whether each layer attends to the tokens around each alone."""
    window_rope_base: float
    n_labels: int
    """Numbers that a classifier gives."""
    experts: ExpertsConfig | None
    """None: no layer has some."""
    routed: tuple[bool, ...]
    """Whether the feed-forward of each layer is experts."""
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
        architecture, keys = TEXT_ENCODERS[name], Keys(metadata, name)
        keys.refuse("attention.causal", False, "a text encoder reads in both directions")
        keys.refuse("rope.scaling.type", "none", "positions of text encoders are not scaled")
        n_embd = keys.integer("embedding_length", high=MAX_EMBD)
        n_layers = keys.integer("block_count", high=MAX_LAYERS)
        window = keys.integer("attention.sliding_window", 0, low=0, high=MAX_CONTEXT)
        labels = metadata.get(f"{name}.classifier.output_labels")
        if labels is not None and (not isinstance(labels, list) or len(labels) > MAX_EMBD):
            raise keys.error("classifier.output_labels", labels, "a list of names")
        epsilon = "layer_norm_rms_epsilon" if architecture.gemma else "layer_norm_epsilon"
        experts, routed = _experts(keys, architecture, n_layers)
        n_heads, n_kv_heads, head_dim = _heads(keys, architecture, n_embd)
        return TextEncoderConfig(
            architecture=architecture,
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            n_embd=n_embd,
            n_ff=keys.integer("feed_forward_length", high=MAX_FF),
            n_vocab=count_tokens(metadata),
            n_ctx_train=keys.integer("context_length", high=MAX_CONTEXT),
            n_token_types=Keys(metadata, "tokenizer.ggml").integer(
                "token_type_count", 1, high=MAX_TOKEN_TYPES
            ),
            norm_eps=keys.number(f"attention.{epsilon}", high=1.0),
            rope_base=keys.number("rope.freq_base", 10_000.0, low=1.0),
            window=window,
            windowed=_windowed(keys, architecture, n_layers, window),
            window_rope_base=keys.number(
                "rope.freq_base_swa", architecture.window_rope_base, low=1.0
            ),
            n_labels=len(labels) if labels else 1,
            experts=experts,
            routed=routed,
            n_dense=keys.integer("dense_2_feat_out", 0, low=0, high=MAX_FF),
        )


def _heads(keys: Keys, architecture: TextEncoderArchitecture, n_embd: int) -> tuple[int, int, int]:
    """Heads of queries, those of keys and values, and their size."""
    n_heads = keys.integer("attention.head_count", high=MAX_HEADS)
    n_kv_heads = keys.integer("attention.head_count_kv", n_heads, high=MAX_HEADS)
    sized = architecture.gemma and keys.get("attention.key_length") is not None
    if not sized and (n_embd % n_heads or n_embd // n_heads > MAX_WHOLE_HEAD_DIM):
        raise keys.error(
            "attention.head_count",
            n_heads,
            f"a divisor of {n_embd} that makes heads of up to {MAX_WHOLE_HEAD_DIM}",
        )
    head_dim = n_embd // n_heads
    if architecture.gemma:
        head_dim = keys.integer("attention.key_length", head_dim, high=MAX_WHOLE_HEAD_DIM)
        keys.refuse("attention.value_length", head_dim, "keys and values have one length")
        if n_heads % n_kv_heads:
            raise keys.error("attention.head_count_kv", n_kv_heads, f"a divisor of {n_heads} heads")
    elif n_kv_heads != n_heads:
        raise keys.error("attention.head_count_kv", n_kv_heads, f"{n_heads}")
    if architecture.positions == "rope" and head_dim % 2:
        raise keys.error("attention.head_count", n_heads, "heads of an even size")
    return n_heads, n_kv_heads, head_dim


def _windowed(
    keys: Keys, architecture: TextEncoderArchitecture, n_layers: int, window: int
) -> tuple[bool, ...]:
    """Which layers have a window: as the architecture says, or for Gemma the file."""
    key, period = "attention.sliding_window_pattern", architecture.window_period
    if not window or not period:
        return (False,) * n_layers
    listed = keys.get(key) if architecture.gemma else None
    if isinstance(listed, (list, np.ndarray)):
        flags = np.array(listed)
        if flags.dtype != np.bool_ or len(flags) != n_layers:
            raise keys.error(key, listed, f"true or false for each of {n_layers} layers")
        return tuple(flags.tolist())
    if architecture.gemma:
        period = keys.integer(key, period, high=MAX_LAYERS)
        return tuple((i + 1) % period != 0 for i in range(n_layers))
    return tuple(i % period != 0 for i in range(n_layers))


def _experts(
    keys: Keys, architecture: TextEncoderArchitecture, n_layers: int
) -> tuple[ExpertsConfig | None, tuple[bool, ...]]:
    """The experts, and which layers have them."""
    period = keys.integer("moe_every_n_layers", 0, low=0, high=MAX_LAYERS)
    if not architecture.experts or not period:
        return None, (False,) * n_layers
    n_experts = keys.integer("expert_count", high=MOST_EXPERTS)
    routing = Routing(n_experts, keys.integer("expert_used_count", high=n_experts))
    n_ff = keys.integer("feed_forward_length", high=MAX_FF)
    experts = ExpertsConfig(n_ff, routing, choice_bias="none", shared=None)
    return experts, tuple(i % period == 1 for i in range(n_layers))
