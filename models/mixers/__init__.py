"""What mixes the tokens of a layer: attention, attention to compressed rows, a gated delta net, a
short convolution, Mamba 2. One file for each kind.

A kind has weights, which load themselves (`load`), and a mixer, which the forward pass calls in
three steps (`Mixer`). `models.config` says which layer has which kinds.
"""

from __future__ import annotations

from typing import Any

from ..config import ModelConfig
from ..config.layers import (
    AttentionConfig,
    DeltaNetConfig,
    LayerConfig,
    Mamba2Config,
    MixerConfig,
    ShortConvConfig,
)
from ..loader import Loader
from ..workspace import Widths, Workspace
from .attention import AttentionMixer, AttentionWeights
from .base import Mixer
from .delta_net import DeltaNetMixer, DeltaNetWeights
from .latent import LatentMixer, LatentWeights
from .mamba2 import Mamba2Mixer, Mamba2Weights
from .short_conv import ShortConvMixer, ShortConvWeights

MixerWeights = AttentionWeights | LatentWeights | DeltaNetWeights | ShortConvWeights | Mamba2Weights
"""The weights of any kind."""

_KINDS: dict[type, tuple[Any, type[Mixer[Any, Any]]]] = {
    AttentionConfig: (AttentionWeights, AttentionMixer),
    DeltaNetConfig: (DeltaNetWeights, DeltaNetMixer),
    Mamba2Config: (Mamba2Weights, Mamba2Mixer),
    ShortConvConfig: (ShortConvWeights, ShortConvMixer),
}


def _kind_of(mixer: MixerConfig) -> tuple[Any, type[Mixer[Any, Any]]]:
    if isinstance(mixer, AttentionConfig) and mixer.latent is not None:
        return LatentWeights, LatentMixer
    return _KINDS[type(mixer)]


def load_mixers(
    loader: Loader, prefix: str, config: ModelConfig, layer: LayerConfig
) -> tuple[MixerWeights, ...]:
    """The weights of the mixers of layer `prefix` ("blk.3")."""
    return tuple(_kind_of(mixer)[0].load(loader, prefix, config, mixer) for mixer in layer.mixers)


def mixers_of(
    weights: tuple[MixerWeights, ...],
    index: int,
    rotation: int | None,
    config: ModelConfig,
    work: Workspace,
) -> list[Mixer[Any, Any]]:
    """The mixers of layer `index`."""
    numbers = {True: config.attention_number(index), False: config.state_number(index)}
    return [
        _kind_of(mixer)[1](
            part, mixer, numbers[isinstance(mixer, AttentionConfig)], rotation, config, work
        )
        for part, mixer in zip(weights, config.layers[index].mixers, strict=True)
    ]


def widths(config: ModelConfig, layer: LayerConfig) -> list[Widths]:
    """The memory of the layer's mixers."""
    return [_kind_of(mixer)[1].widths(config, mixer) for mixer in layer.mixers]
