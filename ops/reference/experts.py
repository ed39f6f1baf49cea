"""Routed experts in plain NumPy, token by token, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import F64
from ..experts.routing import Routing
from ..types import QuantType
from .linear import rounded_activations
from .pointwise import (
    clamped_swiglu_reference,
    geglu_reference,
    gelu_reference,
    relu_squared_reference,
    swiglu_reference,
)

GATED = {
    "silu": swiglu_reference,
    "gelu": geglu_reference,
    "clamped-silu": clamped_swiglu_reference,
    "relu-squared": lambda _, up: relu_squared_reference(up),
    "ungated-gelu": lambda _, up: gelu_reference(up),
}


def softmax(x: F64) -> F64:
    """exp(x) / sum(exp(x))."""
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def route_reference(
    logits: NDArray[Any],
    routing: Routing,
    choice_bias: NDArray[Any] | None = None,
    scales: NDArray[Any] | None = None,
) -> tuple[NDArray[np.intp], F64]:
    """The experts that one token chooses, and their weights: see `Routing`. logits (n_experts,)."""
    x, k = logits.astype(np.float64), routing.n_used
    bias = np.zeros(len(x)) if choice_bias is None else choice_bias
    if not (np.isfinite(x).all() and np.isfinite(bias).all()):
        return np.arange(k), np.full(k, np.nan)
    s = {"softmax": softmax(x), "softmax-of-chosen": x, "sigmoid": 1 / (1 + np.exp(-x))}
    scores = s[routing.scores]
    choice = scores + bias
    in_groups = choice.reshape(routing.n_groups, -1)
    if routing.n_groups > 1:
        best_two = np.sort(in_groups, axis=1)[:, -2:].sum(axis=1)
        order = np.argsort(-best_two, kind="stable")
        in_groups[order[routing.n_groups_used :]] = -np.inf
    ids = np.argsort(-in_groups.ravel(), kind="stable")[:k]
    weights = scores[ids]
    if routing.scores == "softmax-of-chosen":
        weights = softmax(weights)
    if routing.normalised:
        weights = weights / max(weights.sum(), 2.0**-14)
    weights = weights * routing.scale
    return ids, weights if scales is None else weights * scales[ids]


def expert_reference(
    x: NDArray[np.float32],
    matrices: Sequence[tuple[QuantType, F64]],
    activation: str,
    biases: tuple[Any, Any, Any] = (0, 0, 0),
    rounded: bool = True,
) -> F64:
    """What one expert gives for one token x (D,): see `ExpertWeights`.

    matrices: gate, up and down as floats, and the types whose numbers these are; rounded: multiply
    by the int8 activations that kernels multiply by, else by exact ones.
    """

    def multiply(x: NDArray[Any], matrix: int) -> F64:
        quant_type, weights = matrices[matrix]
        inputs = rounded_activations(x.astype(np.float32)[None], quant_type) if rounded else x[None]
        return np.asarray((inputs @ weights.T)[0] + biases[matrix])

    hidden = GATED[activation](multiply(x, 0), multiply(x, 1))
    return multiply(hidden, 2)
