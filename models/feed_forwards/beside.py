"""A dense network and routed experts side by side: norm(dense(norm(x))) + norm(experts(norm(x))).

The router reads x / rms(x) * scale / sqrt(D). Source: llama.cpp, `src/models/gemma4.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..loader import Loader, Norm
from .dense import Dense, DenseWeights
from .experts import ExpertsWeights

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..config import ModelConfig
    from ..config.layers import BesideConfig
    from ..workspace import Rows, Workspace


@dataclass(frozen=True)
class BesideWeights:
    """The tensors of one layer's two networks."""

    dense: DenseWeights
    experts: ExpertsWeights
    router_scale: Array
    """float32 (D,), divided by sqrt(D)."""
    dense_post_norm: Norm
    experts_norm: Norm
    experts_post_norm: Norm

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: BesideConfig
    ) -> BesideWeights:
        """Read both networks, `{prefix}.ffn_gate_inp.scale` and the norms of what they take and
        give."""
        n_embd = config.n_embd
        scale = loader.values(f"{prefix}.ffn_gate_inp.scale", n_embd) / np.float32(n_embd**0.5)
        return BesideWeights(
            dense=DenseWeights.load(loader, prefix, config, layer.dense),
            experts=ExpertsWeights.load(loader, prefix, config, layer.experts),
            router_scale=loader.device.put(scale),
            dense_post_norm=loader.norm(f"{prefix}.post_ffw_norm_1", n_embd),
            experts_norm=loader.norm(f"{prefix}.pre_ffw_norm_2", n_embd),
            experts_post_norm=loader.norm(f"{prefix}.post_ffw_norm_2", n_embd),
        )


class Beside:
    """The dense network and the experts of one layer."""

    def __init__(
        self, weights: BesideWeights, layer: BesideConfig, config: ModelConfig, work: Workspace
    ) -> None:
        self._weights, self._work, self._eps = weights, work, config.norm_eps
        self._n_experts, self._n_embd = layer.experts.routing.n_experts, config.n_embd
        self._dense = Dense(weights.dense, layer.dense, config, work)
        self._scratch = work.experts_scratch(
            layer.experts.routing, config.n_embd, layer.experts.n_ff
        )
        self._experts_in = work.input("experts")

    @staticmethod
    def widths(config: ModelConfig, layer: BesideConfig) -> dict[str, int]:
        """Floats of a row, by name."""
        rows = {"router": layer.experts.routing.n_experts, "of_experts": config.n_embd}
        return rows | {"experts_in": config.n_embd} | Dense.widths(layer.dense)

    @staticmethod
    def inputs(config: ModelConfig, layer: BesideConfig) -> dict[str, int]:
        """Columns of the inputs of both networks' matrices."""
        return {"experts": config.n_embd} | Dense.inputs(layer.dense)

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """See `FeedForward`; the router and the experts read `b.x`."""
        weights, work, experts_in = self._weights, self._work, self._experts_in
        self._dense(source, b, out)
        work.norm(weights.dense_post_norm, out, out)
        row, given = b.array("experts_in", self._n_embd), b.array("of_experts", self._n_embd)
        logits = b.array("router", self._n_experts)
        work.device.pointwise.rms_norm(b.x, weights.router_scale, self._eps, row)
        work.linear(experts_in.set(row), weights.experts.router, logits)
        work.norm(weights.experts_norm, b.x, row)
        experts = weights.experts.experts
        work.experts(experts_in.set(row), logits, experts, self._scratch, b, given)
        work.norm(weights.experts_post_norm, given, given)
        work.device.pointwise.add(out, given, out)
