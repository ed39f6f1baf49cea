"""The configuration of one layer: its mixers and its feed-forward, each of one kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...ops.experts import Routing
from ...ops.recurrent import DeltaHeads, ScanHeads

# llama.cpp's defaults for keys that a file may omit.
YARN_BETA_FAST = 32.0
YARN_BETA_SLOW = 1.0

RopeScaling = Literal["none", "linear", "yarn", "longrope"]


@dataclass(frozen=True)
class RopeConfig:
    """One rotation: angles(p, i) = p * scale * base^(-2i / n_rot), amplitude `amplitude`.

    `scaling` "yarn" blends scaled and unscaled angles by frequency (see `models/rope.py`).
    """

    n_rot: int
    base: float
    scale: float
    scaling: RopeScaling
    n_ctx_orig: int
    amplitude: float
    beta_fast: float = YARN_BETA_FAST
    beta_slow: float = YARN_BETA_SLOW
    factors: bool = True
    """Whether divisors of frequencies that a file may have apply."""


@dataclass(frozen=True)
class LatentConfig:
    """How a layer makes queries, and the one row of a token that is its key and its value.

    The row is [rotated part | compressed part]; a value is the compressed part.
    """

    q_rank: int
    """Numbers to which a query is compressed; 0: it is not."""
    rank: int
    """Numbers of the compressed part."""
    plain_dim: int
    """Numbers of a query head that do not rotate, before they are taken to the compressed part."""
    value_dim: int
    """Numbers of what a head gives."""


@dataclass(frozen=True)
class AttentionConfig:
    """A layer's mixer: attention to keys and values that contexts store."""

    n_heads: int
    """Query heads."""
    n_kv_heads: int
    head_dim: int
    window: int | None
    """A query at p sees keys p - window + 1 .. p; None: all."""
    rope: RopeConfig | None
    """None: the layer does not rotate."""
    attention_scale: float
    """Factor on q·k."""
    attention_softcap: float
    """Scores become cap * tanh(score / cap); 0: no cap."""
    sinks: bool = False
    """Whether each head has a learned score that belongs to no token (`add_sinks`)."""
    reads: int | None = None
    """The earlier layer whose keys and values it attends to, because it has none; None: its own."""
    latent: LatentConfig | None = None
    """How it makes keys and values of one compressed row, which all heads share."""


@dataclass(frozen=True)
class DeltaNetConfig:
    """A layer's mixer: a gated delta rule, after a short convolution of `width` tokens."""

    heads: DeltaHeads
    width: int
    fused_gates: bool
    """Whether one matrix has the rows of beta and of alpha, side by side for each key head."""

    @property
    def inner(self) -> int:
        """Numbers of a token that the states give."""
        return self.heads.n_values * self.heads.value_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a context holds of the layer, float32: rows before the convolution, the states."""
        return (self.width - 1, self.heads.row), self.heads.state_shape


@dataclass(frozen=True)
class ShortConvConfig:
    """A layer's mixer: a gated convolution of `width` tokens."""

    n: int
    """Channels."""
    width: int

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a context holds of the layer, float32: the rows before its tokens."""
        return ((self.width - 1, self.n),)


@dataclass(frozen=True)
class Mamba2Config:
    """A layer's mixer: a selective scan, after a short convolution of `width` tokens."""

    heads: ScanHeads
    width: int
    needs_norm: bool
    """Whether a file must have the norm of what is gated (`ssm_norm`)."""

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a context holds of the layer, float32: rows before the convolution, the states."""
        return (self.width - 1, self.heads.row), self.heads.state_shape


RecurrentConfig = DeltaNetConfig | ShortConvConfig | Mamba2Config
"""Mixers that carry a state from token to token."""


MixerConfig = AttentionConfig | RecurrentConfig
"""A mixer of any kind."""


@dataclass(frozen=True)
class DenseConfig:
    """A layer's feed-forward: one network for all tokens."""

    n_ff: int


@dataclass(frozen=True)
class ExpertsConfig:
    """A layer's feed-forward: networks of which each token takes a few, and one for all tokens."""

    n_ff: int
    """Of one expert."""
    routing: Routing
    choice_bias: Literal["none", "optional", "required"]
    """Whether a tensor is added to the experts' scores for the choice alone."""
    shared: DenseConfig | None
    shared_gate: bool = False
    """Whether what the shared network gives is multiplied by sigmoid(gate · x)."""
    biases: bool = False
    """Whether each expert's matrices have biases."""
    n_latent: int = 0
    """Width of the rows that the experts read and write; 0: n_embd."""
    apart: bool = False
    """Whether the router, the experts and the shared network have norms of their own."""


FeedForwardConfig = DenseConfig | ExpertsConfig
"""A feed-forward of any kind."""


@dataclass(frozen=True)
class LayerConfig:
    """One layer: mixers of tokens, whose outputs add up, and a feed-forward; or one of the two."""

    attention: AttentionConfig | None
    state: RecurrentConfig | None
    feed_forward: FeedForwardConfig | None

    @property
    def mixers(self) -> tuple[MixerConfig, ...]:
        """Those that it has."""
        return tuple(mixer for mixer in (self.state, self.attention) if mixer is not None)
