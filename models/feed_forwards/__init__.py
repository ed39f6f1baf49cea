"""What follows the mixer of a layer: a gated dense network, experts, or both. One file for each.

A kind has weights, which load themselves (`load`), and a feed-forward, which the forward pass
calls. `models.config` says which layer has which kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..config.layers import BesideConfig, ExpertsConfig
from .beside import Beside, BesideWeights
from .dense import Dense, DenseWeights
from .experts import Experts, ExpertsWeights

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..config import ModelConfig
    from ..config.layers import LayerConfig
    from ..loader import Loader
    from ..workspace import Rows, Workspace

FeedForwardWeights = DenseWeights | ExpertsWeights | BesideWeights
"""The weights of any kind."""


class FeedForward(Protocol):
    """One layer's feed-forward."""

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """Write the layer's branch, float32 (T, n_embd), of the normed rows that `source` holds."""


def load_feed_forward(
    loader: Loader, prefix: str, config: ModelConfig, layer: LayerConfig
) -> FeedForwardWeights | None:
    """The weights of the feed-forward of layer `prefix` ("blk.3"), if it has one."""
    kind = layer.feed_forward
    if kind is None:
        return None
    if isinstance(kind, ExpertsConfig):
        return ExpertsWeights.load(loader, prefix, config, kind)
    if isinstance(kind, BesideConfig):
        return BesideWeights.load(loader, prefix, config, kind)
    return DenseWeights.load(loader, prefix, config, kind)


def feed_forward_of(
    weights: FeedForwardWeights, layer: LayerConfig, config: ModelConfig, work: Workspace
) -> FeedForward:
    """The feed-forward with these weights."""
    kind = layer.feed_forward
    if isinstance(kind, ExpertsConfig):
        assert isinstance(weights, ExpertsWeights)
        return Experts(weights, kind, config, work)
    if isinstance(kind, BesideConfig):
        assert isinstance(weights, BesideWeights)
        return Beside(weights, kind, config, work)
    assert isinstance(weights, DenseWeights) and kind is not None
    return Dense(weights, kind, config, work)


def widths(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """Floats of a row in the memory of the layer's feed-forward, by name."""
    kind = layer.feed_forward
    if isinstance(kind, ExpertsConfig):
        return Experts.widths(config, kind)
    if isinstance(kind, BesideConfig):
        return Beside.widths(config, kind)
    return {} if kind is None else Dense.widths(kind)


def inputs(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """Columns of the inputs of matrix products beside the normed row, by name."""
    kind = layer.feed_forward
    if isinstance(kind, ExpertsConfig):
        return Experts.inputs(kind)
    if isinstance(kind, BesideConfig):
        return Beside.inputs(config, kind)
    return {} if kind is None else Dense.inputs(kind)
