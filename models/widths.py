"""How wide the rows of a model's forward pass are."""

from __future__ import annotations

from . import feed_forwards, mixers, per_layer
from .config import ModelConfig
from .workspace import Widths


def widths_of(config: ModelConfig) -> Widths:
    """The memory of all layers."""
    always = dict.fromkeys(("x", "branch"), config.n_embd)
    if not config.architecture.norms_in_place:
        always["normed"] = config.n_embd
    layers = set(config.layers)
    # Only branches that are computed from the same rows need memory at the same time.
    if config.architecture.parallel != "never" or any(len(x.mixers) > 1 for x in layers):
        always["other"] = config.n_embd
    parts = [per_layer.widths(config), Widths(always, {"normed": config.n_embd})]
    for layer in layers:
        parts += [*mixers.widths(config, layer), *feed_forwards.widths(config, layer)]
    return Widths.widest(parts)
