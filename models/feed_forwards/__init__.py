"""What follows the mixer of a layer: a gated dense network. One file for each kind.

A kind has weights, which load themselves (`load`), and a feed-forward, which the forward pass
calls. `models.config` says which layer has which kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .dense import Dense, DenseWeights

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..config import ModelConfig
    from ..layer_config import LayerConfig
    from ..loader import Loader
    from ..workspace import Rows, Workspace

FeedForwardWeights = DenseWeights
"""The weights of any kind."""


class FeedForward(Protocol):
    """One layer's feed-forward."""

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """Write the layer's branch, float32 (T, n_embd), of the normed rows that `source` holds."""


def load_feed_forward(
    loader: Loader, prefix: str, config: ModelConfig, layer: LayerConfig
) -> FeedForwardWeights:
    """The weights of the feed-forward of layer `prefix` ("blk.3")."""
    return DenseWeights.load(loader, prefix, config, layer.feed_forward)


def feed_forward_of(
    weights: FeedForwardWeights, layer: LayerConfig, config: ModelConfig, work: Workspace
) -> FeedForward:
    """The feed-forward with these weights."""
    return Dense(weights, layer.feed_forward, config, work)


def widths(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """Floats of a row in the memory of the layer's feed-forward, by name."""
    return Dense.widths(layer.feed_forward)


def inputs(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """Columns of the inputs of matrix products beside the normed row, by name."""
    return Dense.inputs(layer.feed_forward)
