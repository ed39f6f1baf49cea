"""The dense feed-forward: down(activation(gate) * up), or down(activation(up))."""

from __future__ import annotations

from dataclasses import dataclass

from ...ops.device import Activations, Array
from ..config import ModelConfig
from ..config.layers import DenseConfig
from ..loader import Linear, Loader
from ..workspace import Rows, Widths, Workspace


@dataclass(frozen=True)
class DenseWeights:
    """The tensors of one layer's dense feed-forward."""

    n_ff: int
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
        n_ff, n_embd, gate = layer.n_ff, config.n_embd, None
        gate_name, up_name, down_name = (
            f"{prefix}.ffn_{part}{suffix}" for part in ("gate", "up", "down")
        )
        if config.architecture.fused_gate_up:
            gate, up = loader.split(up_name, [n_ff, n_ff], n_embd)
        else:
            if config.architecture.gated:
                gate = loader.linear(gate_name, n_ff, n_embd)
            up = loader.linear(up_name, n_ff, n_embd)
        return DenseWeights(n_ff, gate, up, loader.linear(down_name, n_embd, n_ff))


class Dense:
    """The dense feed-forward of one layer."""

    def __init__(self, weights: DenseWeights, config: ModelConfig, work: Workspace) -> None:
        self._weights, self._work, self._n_ff = weights, work, weights.n_ff
        pointwise = work.device.pointwise
        gated = {"silu": pointwise.swiglu, "gelu": pointwise.geglu}
        plain = {"gelu": pointwise.gelu, "relu-squared": pointwise.relu_squared}
        kinds = plain if weights.gate is None else gated
        self._activate = kinds[config.architecture.activation]
        self._down_in = work.input(f"gated {self._n_ff}")

    @staticmethod
    def widths(config: ModelConfig, layer: DenseConfig) -> Widths:
        """Its memory; columns of the down projection name its input: layers may differ in them."""
        names = ("gate", "up") if config.architecture.gated else ("gate",)
        return Widths(dict.fromkeys(names, layer.n_ff), {f"gated {layer.n_ff}": layer.n_ff})

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """Write the layer's branch, float32 (T, n_embd), of the normed rows that `source` holds."""
        weights, work = self._weights, self._work
        gate = b.array("gate", self._n_ff)
        if weights.gate is None:
            work.linear(source, weights.up, gate)
            self._activate(gate)
        else:
            up = b.array("up", self._n_ff)
            products = (weights.gate, gate), (weights.up, up)
            work.multiply(source, *products)
            work.add_biases(*products)
            self._activate(gate, up, gate)
        work.linear(self._down_in.set(gate), weights.down, out)
