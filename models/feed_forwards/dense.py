"""The dense feed-forward: down(activation(gate) * up), or down(activation(up))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..loader import Linear, Loader

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..config import ModelConfig
    from ..config.layers import DenseConfig
    from ..workspace import Rows, Workspace


@dataclass(frozen=True)
class DenseWeights:
    """The tensors of one layer's dense feed-forward."""

    gate: Linear | None
    """None where the architecture has none."""
    up: Linear
    down: Linear

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: DenseConfig, suffix: str = ""
    ) -> DenseWeights:
        """Read `{prefix}.ffn_gate`, `ffn_up` (or both from `ffn_up`) and `ffn_down`, with `suffix`
        after each name."""
        n_ff, n_embd = layer.n_ff, config.n_embd
        gate_name, up_name, down_name = (
            f"{prefix}.ffn_{part}{suffix}" for part in ("gate", "up", "down")
        )
        gate: Linear | None
        if config.architecture.fused_gate_up:
            gate, up = loader.split(up_name, [n_ff, n_ff], n_embd)
        else:
            gated = config.architecture.gated
            gate = loader.linear(gate_name, n_ff, n_embd) if gated else None
            up = loader.linear(up_name, n_ff, n_embd)
        return DenseWeights(gate, up, loader.linear(down_name, n_embd, n_ff))


class Dense:
    """The dense feed-forward of one layer; `down_in`: the name of the down projection's input."""

    def __init__(
        self,
        weights: DenseWeights,
        layer: DenseConfig,
        config: ModelConfig,
        work: Workspace,
        down_in: str = "gated",
    ) -> None:
        self._weights, self._work, self._n_ff = weights, work, layer.n_ff
        pointwise = work.device.pointwise
        activation = config.architecture.activation
        gated = {"silu": pointwise.swiglu, "gelu": pointwise.geglu}
        plain = {"gelu": pointwise.gelu, "relu-squared": pointwise.relu_squared}
        self._activate = (plain if weights.gate is None else gated)[activation]
        self._down_in = work.input(f"{down_in} {layer.n_ff}")

    @staticmethod
    def widths(layer: DenseConfig) -> dict[str, int]:
        """Floats of a row, by name."""
        return {"gate": layer.n_ff, "up": layer.n_ff}

    @staticmethod
    def inputs(layer: DenseConfig, down_in: str = "gated") -> dict[str, int]:
        """Columns of the down projection, which name its input, too: layers may differ in them."""
        return {f"{down_in} {layer.n_ff}": layer.n_ff}

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """See `FeedForward`."""
        weights, work = self._weights, self._work
        gate, up = b.array("gate", self._n_ff), b.array("up", self._n_ff)
        if weights.gate is None:
            work.linear(source, weights.up, gate)
            self._activate(gate)
        else:
            products = (weights.gate, gate), (weights.up, up)
            work.multiply(source, *products)
            work.add_biases(*products)
            self._activate(gate, up, gate)
        work.linear(self._down_in.set(gate), weights.down, out)
