"""Attention: q, k, v of the normed row → norms → rope → attention object → output projection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..loader import F32, Linear, Loader

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..attention import Attention
    from ..config import ModelConfig
    from ..workspace import Rows, Workspace


@dataclass(frozen=True)
class AttentionWeights:
    """The tensors of one layer's attention; None where the architecture has none."""

    q: Linear
    k: Linear
    v: Linear
    output: Linear
    q_norm: Array | None
    k_norm: Array | None
    sinks: F32 | None
    """On the host: the attention object reads them."""

    @staticmethod
    def load(loader: Loader, prefix: str, config: ModelConfig) -> AttentionWeights:
        """Read `{prefix}.attn_q`, `attn_k`, `attn_v` (or `attn_qkv`), `attn_output` and norms."""
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        rows = {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv}
        q, k, v = _qkv(loader, prefix, rows, config.n_embd)

        def norm(name: str, n: int) -> Array | None:
            kind = config.architecture.qk_norm
            if kind == "none":
                return None
            n = config.head_dim if kind == "head" else n
            return loader.vector(f"{prefix}.{name}.weight", n)

        return AttentionWeights(
            q,
            k,
            v,
            output=loader.linear(f"{prefix}.attn_output", config.n_embd, n_q),
            q_norm=norm("attn_q_norm", n_q),
            k_norm=norm("attn_k_norm", n_kv),
            sinks=_sinks(loader, prefix, config),
        )


def _qkv(loader: Loader, prefix: str, rows: dict[str, int], n_cols: int) -> tuple[Linear, ...]:
    """Query, key and value projections, from three tensors or from the rows of one."""
    if f"{prefix}.attn_qkv.weight" not in loader:
        return tuple(loader.linear(f"{prefix}.{name}", n, n_cols) for name, n in rows.items())
    fused = loader.split(f"{prefix}.attn_qkv", list(rows.values()), n_cols)
    # A fused matrix may have separate biases.
    return tuple(
        Linear(part.weight, loader.optional(f"{prefix}.{name}.bias", n))
        if part.bias is None
        else part
        for part, (name, n) in zip(fused, rows.items())
    )


def _sinks(loader: Loader, prefix: str, config: ModelConfig) -> F32 | None:
    if not config.architecture.attention_sinks:
        return None
    return loader.values(f"{prefix}.attn_sinks.weight", config.n_heads)


class AttentionMixer:
    """The attention of one layer; `number` counts the layers that have K and V."""

    def __init__(
        self,
        weights: AttentionWeights,
        number: int,
        rotation: int | None,
        config: ModelConfig,
        work: Workspace,
    ) -> None:
        self._weights, self._number, self._rotation = weights, number, rotation
        self._config, self._work = config, work
        self._q_shape = config.n_heads, config.head_dim
        self._kv_shape = config.n_kv_heads, config.head_dim
        self._n_q, self._n_kv = math.prod(self._q_shape), math.prod(self._kv_shape)
        self._mixed_in = work.input("mixed")

    @staticmethod
    def widths(config: ModelConfig) -> dict[str, int]:
        """Floats of a row, by name."""
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        return {"q": n_q, "k": n_kv, "v": n_kv, "mixed": n_q, "temperature": 1}

    @staticmethod
    def inputs(config: ModelConfig) -> dict[str, int]:
        """Columns of the output projection."""
        return {"mixed": config.n_heads * config.head_dim}

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """rope(k) and v of all rows, rope(q) of `outputs`.

        Rotates the other rows of q, too, though nobody reads them.
        """
        weights, config, work = self._weights, self._config, self._work
        architecture, pointwise = config.architecture, work.device.pointwise
        q, k, v = (
            (weights.q, outputs.array("q", self._n_q)),
            (weights.k, b.array("k", self._n_kv)),
            (weights.v, b.array("v", self._n_kv)),
        )
        if outputs is b:
            work.multiply(source, k, v, q)
        else:
            work.multiply(source, k, v)
            work.multiply(source.set(outputs.normed), q)
        work.add_biases(q, k, v)
        q_heads, k_heads = b.array("q", *self._q_shape), b.array("k", *self._kv_shape)
        if not architecture.qk_norm_after_rope:
            self._norm_heads(q_heads, k_heads)
        if self._rotation is not None:
            pointwise.rope(q_heads, k_heads, angles[self._rotation], architecture.rope)
        if architecture.qk_norm_after_rope:
            self._norm_heads(q_heads, k_heads)
        if config.temperature_scale:
            pointwise.scale_rows(b.array("q", self._n_q), b.array("temperature"))

    def _norm_heads(self, q_heads: Array, k_heads: Array) -> None:
        """Norm q and k in place, if the architecture does: each head, or all of a token at once."""
        weights, config = self._weights, self._config
        for heads, weight in ((q_heads, weights.q_norm), (k_heads, weights.k_norm)):
            if weight is not None:
                rows = heads.reshape(-1, len(weight))
                self._work.device.pointwise.rms_norm(rows, weight, config.norm_eps, rows)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """Append K and V, and attend."""
        q, kv = self._q_shape, self._kv_shape
        attention(
            self._number,
            outputs.array("q", *q),
            tokens.array("k", *kv),
            tokens.array("v", *kv),
            outputs.array("mixed", *q),
        )

    def output(self, b: Rows, out: Array) -> None:
        """The output projection."""
        self._work.linear(
            self._mixed_in.set(b.array("mixed", self._n_q)), self._weights.output, out
        )
