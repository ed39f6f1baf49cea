"""Routed experts: each token takes a few of many networks, and perhaps one that all take.

In some models these read and write rows of another width, between two matrices for all of them:

    out = latent_up (experts (latent_down x)) + shared(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...ops.experts import ExpertWeights
from ..loader import Linear, Loader
from .dense import Dense, DenseWeights

if TYPE_CHECKING:
    from ...ops.device import Activations, Array, ExpertMatrix
    from ..config import ModelConfig
    from ..config.layers import ExpertsConfig
    from ..workspace import Rows, Workspace

SHARED_IN = "shared_gated"


@dataclass(frozen=True)
class ExpertsWeights:
    """The tensors of one layer's experts."""

    router: Linear
    experts: ExpertWeights
    shared: DenseWeights | None
    shared_gate: Linear | None
    latent: tuple[Linear, Linear] | None = None
    """To the width of the experts' rows and back; None: it is n_embd."""

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: ExpertsConfig
    ) -> ExpertsWeights:
        """Read `{prefix}.ffn_gate_inp`, the stacked `ffn_gate_exps`, `ffn_up_exps` (or
        `ffn_gate_up_exps`), `ffn_down_exps`, `exp_probs_b`, and `ffn_*_shexp`."""
        n, n_ff, n_embd = layer.routing.n_experts, layer.n_ff, layer.n_latent or config.n_embd
        router = loader.linear(f"{prefix}.ffn_gate_inp", n, config.n_embd)
        gate: ExpertMatrix | None = None
        if not config.architecture.gated:
            up = loader.experts(f"{prefix}.ffn_up_exps", (n, n_ff, n_embd))
        elif f"{prefix}.ffn_gate_up_exps.weight" in loader:
            fused = loader.experts(f"{prefix}.ffn_gate_up_exps", (n, 2 * n_ff, n_embd))
            gate, up = fused.halves()
        else:
            gate, up = (
                loader.experts(f"{prefix}.ffn_{part}_exps", (n, n_ff, n_embd))
                for part in ("gate", "up")
            )
        down = loader.experts(f"{prefix}.ffn_down_exps", (n, n_embd, n_ff))
        bias, choice_bias = f"{prefix}.exp_probs_b.bias", None
        if layer.choice_bias == "required" or (layer.choice_bias == "optional" and bias in loader):
            choice_bias = loader.vector(bias, n)
        sizes = {"gate": n_ff, "up": n_ff, "down": n_embd} if layer.biases else {}
        biases = {
            f"{part}_bias": loader.rows(f"{prefix}.ffn_{part}_exps.bias", (n, size))
            for part, size in sizes.items()
        }
        experts = ExpertWeights(
            layer.routing,
            config.architecture.activation,
            gate,
            up,
            down,
            choice_bias=choice_bias,
            scales=_scales(loader, f"{prefix}.ffn_down_exps.scale", config, n),
            **biases,
        )
        shared = gate_row = None
        if layer.shared is not None:
            shared = DenseWeights.load(loader, prefix, config, layer.shared, "_shexp")
            if layer.shared_gate:
                gate_row = loader.row(f"{prefix}.ffn_gate_inp_shexp", n_embd)
        latent = None
        if layer.n_latent:
            narrow = loader.linear(f"{prefix}.ffn_latent_down", n_embd, config.n_embd)
            latent = narrow, loader.linear(f"{prefix}.ffn_latent_up", config.n_embd, n_embd)
        return ExpertsWeights(router, experts, shared, gate_row, latent)


def _scales(loader: Loader, name: str, config: ModelConfig, n: int) -> Array | None:
    """Factors on what each expert gives."""
    rules = config.architecture.experts
    return loader.optional(name, n) if rules is not None and rules.beside_dense else None


class Experts:
    """The experts of one layer."""

    def __init__(
        self, weights: ExpertsWeights, layer: ExpertsConfig, config: ModelConfig, work: Workspace
    ) -> None:
        self._weights, self._work = weights, work
        self._n_experts, self._n_embd = layer.routing.n_experts, config.n_embd
        self._n_latent = layer.n_latent
        width = layer.n_latent or config.n_embd
        self._scratch = work.experts_scratch(layer.routing, width, layer.n_ff)
        self._shared = None
        if weights.shared is not None and layer.shared is not None:
            self._shared = Dense(weights.shared, layer.shared, config, work, SHARED_IN)
            self._ones = work.device.put(np.ones((work.max_chunk, 1), np.float32))

    @staticmethod
    def widths(config: ModelConfig, layer: ExpertsConfig) -> dict[str, int]:
        """Floats of a row, by name."""
        rows = {"router": layer.routing.n_experts}
        rows |= dict.fromkeys(("latent", "of_latent"), layer.n_latent) if layer.n_latent else {}
        if layer.shared is None:
            return rows
        shared = {"shared": config.n_embd, "shared_gate": 1}
        return rows | shared | Dense.widths(layer.shared)

    @staticmethod
    def inputs(layer: ExpertsConfig) -> dict[str, int]:
        """Columns of the inputs of the latent matrices and of the shared network."""
        latent = dict.fromkeys(("latent", "of_latent"), layer.n_latent) if layer.n_latent else {}
        return latent | ({} if layer.shared is None else Dense.inputs(layer.shared, SHARED_IN))

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """See `FeedForward`."""
        weights, work = self._weights, self._work
        logits = b.array("router", self._n_experts)
        work.linear(source, weights.router, logits)
        if weights.latent is None:
            work.experts(source, logits, weights.experts, self._scratch, b, out)
        else:
            self._latent(source, weights.latent, logits, b, out)
        if self._shared is not None:
            shared = b.array("shared", self._n_embd)
            self._shared(source, b, shared)
            if weights.shared_gate is not None:
                self._gate_shared(source, weights.shared_gate, b, shared)
            work.device.pointwise.add(out, shared, out)

    def _latent(
        self,
        source: Activations,
        matrices: tuple[Linear, Linear],
        logits: Array,
        b: Rows,
        out: Array,
    ) -> None:
        """out = up (experts (down x)), where the experts read and write narrower rows."""
        work, (down, up) = self._work, matrices
        x, y = (b.array(name, self._n_latent) for name in ("latent", "of_latent"))
        work.linear(source, down, x)
        narrow = work.input("latent").set(x)
        work.experts(narrow, logits, self._weights.experts, self._scratch, b, y)
        work.linear(work.input("of_latent").set(y), up, out)

    def _gate_shared(self, source: Activations, row: Linear, b: Rows, shared: Array) -> None:
        """shared *= sigmoid(row · x)."""
        gate, pointwise = b.array("shared_gate", 1), self._work.device.pointwise
        self._work.linear(source, row, gate)
        pointwise.sigmoid_gate(self._ones[: len(gate)], gate, gate)
        pointwise.scale_rows(shared, b.array("shared_gate"))
