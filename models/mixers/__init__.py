"""What mixes the tokens of a layer: attention, attention to compressed rows, a gated delta net, a
short convolution, Mamba 2. One file for each kind.

A kind has weights, which load themselves (`load`), and a mixer, which the forward pass calls in
three steps (`Mixer`). `models.config` says which layer has which kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..config.layers import (
    AttentionConfig,
    BothConfig,
    DeltaNetConfig,
    Mamba2Config,
    ShortConvConfig,
)
from .attention import AttentionMixer, AttentionWeights
from .both import BothMixer, BothWeights
from .delta_net import DeltaNetMixer, DeltaNetWeights
from .latent import LatentMixer, LatentWeights
from .mamba2 import Mamba2Mixer, Mamba2Weights
from .short_conv import ShortConvMixer, ShortConvWeights

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..attention import Attention
    from ..config import ModelConfig
    from ..config.layers import LayerConfig
    from ..loader import Loader
    from ..workspace import Rows, Workspace

MixerWeights = (
    AttentionWeights
    | LatentWeights
    | DeltaNetWeights
    | ShortConvWeights
    | Mamba2Weights
    | BothWeights
)
"""The weights of any kind."""


class Mixer(Protocol):
    """One layer's mixer, in the three steps between which the forward pass may be recorded.

    `project` and `output` know no context: what is recorded of them serves all contexts.
    """

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """Compute what `mix` needs of `source`, which holds the normed rows of `b`.

        outputs: the rows whose outputs are wanted, `b` itself or the last of them. Afterwards
        `source` holds the normed rows of `outputs`. angles: rows of each of the model's rotations.
        """

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """Mix the rows `tokens` with the context's earlier ones, for the rows `outputs`."""

    def output(self, b: Rows, out: Array) -> None:
        """The layer's branch, float32 (T, n_embd), of what `mix` wrote for the rows `b`."""


def load_mixer(
    loader: Loader, prefix: str, config: ModelConfig, layer: LayerConfig
) -> MixerWeights | None:
    """The weights of the mixer of layer `prefix` ("blk.3"), if it has one."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionConfig):
        if mixer.latent is not None:
            return LatentWeights.load(loader, prefix, config, mixer)
        return AttentionWeights.load(loader, prefix, config, mixer)
    if isinstance(mixer, DeltaNetConfig):
        return DeltaNetWeights.load(loader, prefix, config, mixer)
    if isinstance(mixer, Mamba2Config):
        return Mamba2Weights.load(loader, prefix, config, mixer)
    if isinstance(mixer, BothConfig):
        return BothWeights.load(loader, prefix, config, mixer)
    if mixer is None:
        return None
    return ShortConvWeights.load(loader, prefix, config, mixer)


def mixer_of(
    weights: MixerWeights, index: int, rotation: int | None, config: ModelConfig, work: Workspace
) -> Mixer:
    """The mixer of layer `index`."""
    mixer, number = config.layers[index].mixer, config.state_number(index)
    if isinstance(mixer, AttentionConfig):
        number = config.attention_number(index)
    if isinstance(weights, AttentionWeights):
        assert isinstance(mixer, AttentionConfig)
        return AttentionMixer(weights, mixer, number, rotation, config, work)
    if isinstance(weights, LatentWeights):
        assert isinstance(mixer, AttentionConfig)
        return LatentMixer(weights, mixer, number, rotation, config, work)
    if isinstance(weights, DeltaNetWeights):
        assert isinstance(mixer, DeltaNetConfig)
        return DeltaNetMixer(weights, mixer, number, config, work)
    if isinstance(weights, Mamba2Weights):
        assert isinstance(mixer, Mamba2Config)
        return Mamba2Mixer(weights, mixer, number, config, work)
    if isinstance(weights, BothWeights):
        assert isinstance(mixer, BothConfig)
        return BothMixer(weights, mixer, index, rotation, config, work)
    assert isinstance(mixer, ShortConvConfig)
    return ShortConvMixer(weights, mixer, number, work)


def widths(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """Floats of a row in the memory of the layer's mixer, by name."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionConfig):
        if mixer.latent is not None:
            return LatentMixer.widths(mixer)
        return AttentionMixer.widths(config, mixer)
    if isinstance(mixer, DeltaNetConfig):
        return DeltaNetMixer.widths(mixer)
    if isinstance(mixer, Mamba2Config):
        return Mamba2Mixer.widths(mixer)
    if isinstance(mixer, BothConfig):
        return BothMixer.widths(config, mixer)
    if mixer is None:
        return {}
    return ShortConvMixer.widths(mixer)


def inputs(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """Columns of the inputs of matrix products beside the normed row, by name."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionConfig):
        if mixer.latent is not None:
            return LatentMixer.inputs(mixer)
        return AttentionMixer.inputs(config, mixer)
    if isinstance(mixer, DeltaNetConfig):
        return DeltaNetMixer.inputs(mixer)
    if isinstance(mixer, Mamba2Config):
        return Mamba2Mixer.inputs(mixer)
    if isinstance(mixer, BothConfig):
        return BothMixer.inputs(config, mixer)
    if mixer is None:
        return {}
    return ShortConvMixer.inputs(mixer)
