"""How wide the rows of a forward pass are: what its memory is planned and allocated by."""

from __future__ import annotations

from . import feed_forwards, mixers, per_layer
from .config import ModelConfig


def _most(parts: list[dict[str, int]]) -> dict[str, int]:
    """The largest number of each name."""
    return {name: max(p.get(name, 0) for p in parts) for part in parts for name in part}


def row_widths(config: ModelConfig) -> dict[str, int]:
    """Floats of a row of the forward pass, by name: layers share memory of one name."""
    always = dict.fromkeys(("x", "branch"), config.n_embd)
    if config.architecture.pre_norms:
        always["normed"] = config.n_embd
    # Only parallel branches need memory at the same time.
    if config.architecture.parallel != "never":
        always["other"] = config.n_embd
    layers = set(config.layers)
    parts = [kind.widths(config, layer) for layer in layers for kind in (mixers, feed_forwards)]
    return always | per_layer.widths(config) | _most(parts)


def input_widths(config: ModelConfig) -> dict[str, int]:
    """Columns of the inputs of matrix products, by name."""
    layers = set(config.layers)
    parts = [kind.inputs(config, layer) for layer in layers for kind in (mixers, feed_forwards)]
    return {"normed": config.n_embd} | per_layer.inputs(config) | _most(parts)
