"""Gated delta net: q, k, v of the normed row → short convolution → delta rule → gated norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..loader import Linear, Loader

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..attention import Attention
    from ..config import ModelConfig
    from ..config.layers import DeltaNetConfig
    from ..workspace import Rows, Workspace


@dataclass(frozen=True)
class DeltaNetWeights:
    """The tensors of one layer's gated delta net."""

    qkv: Linear
    z: Linear
    gates: dict[str, Linear]
    """By their memory: "beta" and "alpha", or "beta_alpha"."""
    output: Linear
    convolution: Array
    """float32 (width, channels), the oldest row first."""
    rates: Array
    bias: Array
    norm: Array

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: DeltaNetConfig
    ) -> DeltaNetWeights:
        """Read `{prefix}.attn_qkv`, `attn_gate`, `ssm_beta` and `ssm_alpha` (or `ssm_ba`), …"""
        heads, n_embd = layer.heads, config.n_embd
        gates = {"beta": "ssm_beta", "alpha": "ssm_alpha"}
        n_gates = heads.n_values
        if layer.fused_gates:
            gates, n_gates = {"beta_alpha": "ssm_ba"}, 2 * heads.n_values
        n_values = heads.n_values * heads.value_dim
        return DeltaNetWeights(
            qkv=loader.linear(f"{prefix}.attn_qkv", heads.row, n_embd),
            z=loader.linear(f"{prefix}.attn_gate", n_values, n_embd),
            gates={
                memory: loader.linear(f"{prefix}.{name}", n_gates, n_embd)
                for memory, name in gates.items()
            },
            output=loader.linear(f"{prefix}.ssm_out", n_embd, n_values),
            convolution=loader.columns(f"{prefix}.ssm_conv1d.weight", (heads.row, layer.width)),
            rates=loader.vector(f"{prefix}.ssm_a", heads.n_values),
            bias=loader.vector(f"{prefix}.ssm_dt.bias", heads.n_values),
            norm=loader.vector(f"{prefix}.ssm_norm.weight", heads.value_dim),
        )


class DeltaNetMixer:
    """The gated delta net of one layer; `number` counts the layers that carry a state."""

    def __init__(
        self,
        weights: DeltaNetWeights,
        layer: DeltaNetConfig,
        number: int,
        config: ModelConfig,
        work: Workspace,
    ) -> None:
        self._weights, self._heads, self._number = weights, layer.heads, number
        self._work, self._eps = work, config.norm_eps
        self._operations = operations = work.device.recurrent
        self._n_values = layer.heads.n_values * layer.heads.value_dim
        self._scratch = work.shared(layer.heads, lambda: operations.DeltaScratch(layer.heads))
        self._mixed_in = work.input("of_states")

    @staticmethod
    def widths(layer: DeltaNetConfig) -> dict[str, int]:
        """Floats of a row, by name."""
        heads = layer.heads
        n_values = heads.n_values * heads.value_dim
        rows = {"qkv": heads.row, "convolved": heads.row, "z": n_values, "mixed": n_values}
        if layer.fused_gates:
            rows["beta_alpha"] = 2 * heads.n_values
        return rows | dict.fromkeys(("beta", "alpha"), heads.n_values)

    @staticmethod
    def inputs(layer: DeltaNetConfig) -> dict[str, int]:
        """Columns of the output projection."""
        return {"of_states": layer.heads.n_values * layer.heads.value_dim}

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """q, k, v and gates of all rows, z of `outputs`."""
        weights, heads, work = self._weights, self._heads, self._work
        z = weights.z, outputs.array("z", self._n_values)
        n_gates = (2 if "beta_alpha" in weights.gates else 1) * heads.n_values
        all_rows = (
            (weights.qkv, b.array("qkv", heads.row)),
            *((matrix, b.array(name, n_gates)) for name, matrix in weights.gates.items()),
        )
        if outputs is b:
            work.multiply(source, *all_rows, z)
        else:
            work.multiply(source, *all_rows)
            work.multiply(source.set(outputs.normed), z)
        work.add_biases(*all_rows, z)
        if "beta_alpha" in weights.gates:
            groups = heads.n_keys, heads.n_values // heads.n_keys
            pairs = b.array("beta_alpha", groups[0], 2, groups[1])
            beta, alpha = (b.array(name, *groups) for name in ("beta", "alpha"))
            work.device.pointwise.split_pairs(pairs, beta, alpha)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """The convolution and the delta rule of all tokens."""
        weights, heads = self._weights, self._heads
        before, states = attention.state(self._number)
        convolved = tokens.array("convolved", heads.row)
        self._operations.short_conv(
            tokens.array("qkv", heads.row), weights.convolution, before, convolved, silu=True
        )
        self._operations.gated_delta_rule(
            convolved,
            tokens.array("beta", heads.n_values),
            tokens.array("alpha", heads.n_values),
            weights.rates,
            weights.bias,
            states,
            tokens.array("mixed", heads.n_values, heads.value_dim),
            self._scratch,
        )

    def output(self, b: Rows, out: Array) -> None:
        """The gated norm of each head, and the output projection."""
        mixed, z = (b.array(name, self._n_values) for name in ("mixed", "z"))
        rows, gates = (x.reshape(-1, self._heads.value_dim) for x in (mixed, z))
        self._operations.gated_rms_norm(rows, self._weights.norm, gates, self._eps, rows)
        self._work.linear(self._mixed_in.set(mixed), self._weights.output, out)
