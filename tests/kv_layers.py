"""Configurations of models with other attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvarn.models import AttentionConfig, ModelConfig


def with_kv_layers(config: ModelConfig, kv_layers: Iterable[AttentionConfig]) -> ModelConfig:
    """The configuration with other attention in its layers that have keys and values."""
    attention = iter(kv_layers)
    layers = tuple(
        replace(layer, attention=next(attention)) if layer.attention else layer
        for layer in config.layers
    )
    return replace(config, layers=layers)
