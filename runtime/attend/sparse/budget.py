"""Whose budget it is, and how layers share it."""

from __future__ import annotations

UNITS = ("kv-head", "query-head")
SCHEDULES = ("uniform", "linear")


def layer_weights(n_layers: int, schedule: str) -> list[float]:
    """Factor on each layer's budget, with mean 1: 1, or for "linear" 2 (i + 1) / (n + 1)."""
    if schedule == "linear":
        return [2 * (i + 1) / (n_layers + 1) for i in range(n_layers)]
    return [1.0] * n_layers
