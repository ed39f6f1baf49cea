"""Routed experts in plain NumPy, for `plain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvarn.ops.reference import pointwise as reference
from kvarn.ops.reference.experts import expert_reference, route_reference
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES, QuantType


def gelu_ggml(x: np.ndarray) -> np.ndarray:
    """gelu(x) through float16, as ggml's table has it: zero below -10, itself above 10."""
    rounded = reference.gelu_reference(x.astype(np.float16)).astype(np.float16)
    return np.where(x <= -10, 0, np.where(x >= 10, x, rounded.astype(np.float32)))


@dataclass(frozen=True)
class PlainExperts:
    """A matrix of each expert, dequantised to float64."""

    name: str
    matrices: np.ndarray
    is_copy = False

    @staticmethod
    def prepare(kind: QuantType, data: np.ndarray, n_cols: int, name: str = "") -> PlainExperts:
        return PlainExperts(name, dequantise(kind, data).astype(np.float64))

    n_experts = property(lambda self: self.matrices.shape[0])
    n_rows = property(lambda self: self.matrices.shape[1])
    n_cols = property(lambda self: self.matrices.shape[2])

    def halves(self) -> tuple[PlainExperts, PlainExperts]:
        gate, up = np.split(self.matrices, 2, axis=1)
        return PlainExperts(self.name, gate), PlainExperts(self.name, up)


def plain_experts(
    act: Any, logits: np.ndarray, weights: Any, _: None, out: np.ndarray, *, prompt: bool = False
) -> None:
    """The experts of each token, one after the other."""
    gate, kind = weights.gate or weights.up, QUANT_TYPES["F32"]
    stacks = gate, weights.up, weights.down
    out[:] = 0
    for t, x in enumerate(act.x[: act.n]):
        ids, factors = route_reference(
            logits[t], weights.routing, weights.choice_bias, weights.scales
        )
        for e, factor in zip(ids, factors):
            matrices = [(kind, stack.matrices[e]) for stack in stacks]
            parts = weights.gate_bias, weights.up_bias, weights.down_bias
            biases = tuple(0 if part is None else part[e] for part in parts)
            if weights.activation == "gelu":
                out[t] += factor * _gelu_expert(x, [stack.matrices[e] for stack in stacks])
                continue
            out[t] += factor * expert_reference(x, matrices, weights.activation, biases)


def _gelu_expert(x: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    """One expert, with gelu as ggml's table has it."""
    gate, up = ((matrix @ x).astype(np.float32) for matrix in matrices[:2])
    return matrices[2] @ (gelu_ggml(gate) * up)
