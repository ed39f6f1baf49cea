"""Mamba 2: z, x, B, C and steps of the normed row → short convolution → selective scan → gate.

out = ssm_out (norm of groups (scan(silu(conv(x, B, C)), dt) * silu(z)))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ops.device import Activations, Array
from ..attention import Attention
from ..config import ModelConfig
from ..config.layers import Mamba2Config
from ..loader import Linear, Loader
from ..workspace import Rows, Widths
from .base import StateMixer


@dataclass(frozen=True)
class Mamba2Weights:
    """The tensors of one layer's state-space mixer."""

    z: Linear
    xbc: Linear
    dt: Linear
    output: Linear
    convolution: Array
    """float32 (width, channels), the oldest row first."""
    convolution_bias: Array | None
    rates: Array
    bias: Array
    skip: Array
    norm: Array | None
    """float32 (inner,), group after group; None: what is gated is not normed."""

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: Mamba2Config
    ) -> Mamba2Weights:
        """Read `{prefix}.ssm_in`, `ssm_conv1d`, `ssm_a`, `ssm_dt.bias`, `ssm_d`, `ssm_norm`, …"""
        heads, n_embd = layer.heads, config.n_embd
        n, inner, groups = heads.n_heads, heads.inner, heads.n_groups
        z, xbc, dt = loader.split(f"{prefix}.ssm_in", [inner, heads.row, n], n_embd)
        norm, of_groups = f"{prefix}.ssm_norm.weight", (groups, inner // groups)
        has_norm = layer.needs_norm or norm in loader
        return Mamba2Weights(
            z,
            xbc,
            dt,
            output=loader.linear(f"{prefix}.ssm_out", n_embd, inner),
            convolution=loader.columns(f"{prefix}.ssm_conv1d.weight", (heads.row, layer.width)),
            convolution_bias=loader.optional(f"{prefix}.ssm_conv1d.bias", heads.row),
            rates=loader.vector(f"{prefix}.ssm_a", n, 1),
            bias=loader.vector(f"{prefix}.ssm_dt.bias", n),
            skip=loader.vector(f"{prefix}.ssm_d", n, 1),
            norm=loader.vector(norm, *of_groups[groups == 1 :]) if has_norm else None,
        )


class Mamba2Mixer(StateMixer[Mamba2Weights, Mamba2Config]):
    """The state-space mixer of one layer."""

    def _prepare(self) -> None:
        super()._prepare()
        heads = self._layer.heads
        ones = np.ones(heads.inner // heads.n_groups, np.float32)
        self._ones = self._work.device.put(ones)

    @staticmethod
    def widths(config: ModelConfig, layer: Mamba2Config) -> Widths:
        """See `Mixer`."""
        heads = layer.heads
        rows = {"z": heads.inner, "xbc": heads.row, "dt": heads.n_heads}
        rows |= {"convolved": heads.row, "scanned": heads.inner}
        return Widths(rows, {"of_states": heads.inner})

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """x, B, C and steps of all rows, z of `outputs`."""
        weights, heads = self._weights, self._layer.heads
        xbc, dt = b.array("xbc", heads.row), b.array("dt", heads.n_heads)
        z = weights.z, outputs.array("z", heads.inner)
        self._multiply(source, (b, outputs), [(weights.xbc, xbc), (weights.dt, dt)], [z])

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """The convolution and the scan of all tokens."""
        weights, heads = self._weights, self._layer.heads
        before, states = attention.state(self._number)
        convolved = tokens.array("convolved", heads.row)
        xbc, bias = tokens.array("xbc", heads.row), weights.convolution_bias
        self._operations.short_conv(
            xbc, weights.convolution, before, convolved, bias=bias, silu=True
        )
        self._operations.selective_scan(
            convolved,
            tokens.array("dt", heads.n_heads),
            weights.rates,
            weights.bias,
            weights.skip,
            states,
            tokens.array("scanned", heads.n_heads, heads.head_dim),
            heads,
        )

    def output(self, b: Rows, out: Array) -> None:
        """The gate, the norm of each group, and the output projection."""
        pointwise, norm = self._work.device.pointwise, self._weights.norm
        mixed, z = (b.array(name, self._layer.heads.inner) for name in ("scanned", "z"))
        pointwise.swiglu(z, mixed, mixed)
        if norm is not None:
            groups = mixed.reshape(-1, len(self._ones))
            pointwise.rms_norm(groups, self._ones, self._config.norm_eps, groups)
            pointwise.multiply_row(mixed, norm)
        self._work.linear(self._mixed_in.set(mixed), self._weights.output, out)
