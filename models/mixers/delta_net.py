"""Gated delta net: q, k, v of the normed row → short convolution → delta rule → gated norm."""

from __future__ import annotations

from dataclasses import dataclass

from ...ops.device import Activations, Array
from ..attention import Attention
from ..config import ModelConfig
from ..config.layers import DeltaNetConfig
from ..loader import Linear, Loader
from ..workspace import Rows, Widths
from .base import StateMixer


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
        return DeltaNetWeights(
            qkv=loader.linear(f"{prefix}.attn_qkv", heads.row, n_embd),
            z=loader.linear(f"{prefix}.attn_gate", layer.inner, n_embd),
            gates={
                memory: loader.linear(f"{prefix}.{name}", n_gates, n_embd)
                for memory, name in gates.items()
            },
            output=loader.linear(f"{prefix}.ssm_out", n_embd, layer.inner),
            convolution=loader.columns(f"{prefix}.ssm_conv1d.weight", (heads.row, layer.width)),
            rates=loader.vector(f"{prefix}.ssm_a", heads.n_values),
            bias=loader.vector(f"{prefix}.ssm_dt.bias", heads.n_values),
            norm=loader.vector(f"{prefix}.ssm_norm.weight", heads.value_dim),
        )


class DeltaNetMixer(StateMixer[DeltaNetWeights, DeltaNetConfig]):
    """The gated delta net of one layer."""

    def _prepare(self) -> None:
        super()._prepare()
        heads, operations = self._layer.heads, self._operations
        self._scratch = self._work.shared(heads, lambda: operations.DeltaScratch(heads))

    @staticmethod
    def widths(config: ModelConfig, layer: DeltaNetConfig) -> Widths:
        """See `Mixer`."""
        heads = layer.heads
        rows = {"qkv": heads.row, "convolved": heads.row, "z": layer.inner, "mixed": layer.inner}
        if layer.fused_gates:
            rows["beta_alpha"] = 2 * heads.n_values
        rows |= dict.fromkeys(("beta", "alpha"), heads.n_values)
        return Widths(rows, {"of_states": layer.inner})

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """q, k, v and gates of all rows, z of `outputs`."""
        weights, layer, heads = self._weights, self._layer, self._layer.heads
        n_gates = (2 if layer.fused_gates else 1) * heads.n_values
        of_all = [(weights.qkv, b.array("qkv", heads.row))]
        of_all += [(matrix, b.array(name, n_gates)) for name, matrix in weights.gates.items()]
        z = weights.z, outputs.array("z", layer.inner)
        self._multiply(source, (b, outputs), of_all, [z])
        if layer.fused_gates:
            groups = heads.n_keys, heads.n_values // heads.n_keys
            pairs = b.array("beta_alpha", groups[0], 2, groups[1])
            beta, alpha = (b.array(name, *groups) for name in ("beta", "alpha"))
            self._work.device.pointwise.split_pairs(pairs, beta, alpha)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """The convolution and the delta rule of all tokens."""
        weights, heads = self._weights, self._layer.heads
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
        weights, layer, eps = self._weights, self._layer, self._config.norm_eps
        mixed, z = (b.array(name, layer.inner) for name in ("mixed", "z"))
        rows, gates = (x.reshape(-1, layer.heads.value_dim) for x in (mixed, z))
        self._operations.gated_rms_norm(rows, weights.norm, gates, eps, rows)
        self._work.linear(self._mixed_in.set(mixed), weights.output, out)
