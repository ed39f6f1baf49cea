"""What follows the mixers of a layer: a dense network, or experts. One file for each.

A kind has weights, which load themselves (`load`), and a feed-forward, which the forward pass
calls. `models.config` says which layer has which kind.
"""

from __future__ import annotations

from ..config import ModelConfig
from ..config.layers import ExpertsConfig, LayerConfig
from ..loader import Loader
from ..workspace import Widths, Workspace
from .dense import Dense, DenseWeights
from .experts import Experts, ExpertsWeights

FeedForwardWeights = DenseWeights | ExpertsWeights
"""The weights of any kind."""


def load_feed_forward(
    loader: Loader, prefix: str, config: ModelConfig, layer: LayerConfig
) -> FeedForwardWeights | None:
    """The weights of the feed-forward of layer `prefix` ("blk.3"), if it has one."""
    kind = layer.feed_forward
    if isinstance(kind, ExpertsConfig):
        return ExpertsWeights.load(loader, prefix, config, kind)
    return None if kind is None else DenseWeights.load(loader, prefix, config, kind)


def feed_forward_of(
    weights: FeedForwardWeights, config: ModelConfig, work: Workspace
) -> Dense | Experts:
    """The feed-forward with these weights."""
    if isinstance(weights, ExpertsWeights):
        return Experts(weights, config, work)
    return Dense(weights, config, work)


def widths(config: ModelConfig, layer: LayerConfig) -> list[Widths]:
    """The memory of the layer's feed-forward."""
    kind = layer.feed_forward
    if isinstance(kind, ExpertsConfig):
        return Experts.widths(config, kind)
    return [] if kind is None else [Dense.widths(config, kind)]
