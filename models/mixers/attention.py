"""Attention: q, k, v of the normed row → norms → rope → attention object → output projection."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...ops.arrays import F32
from ...ops.device import Activations, Array
from ..attention import Attention
from ..config import ModelConfig
from ..config.layers import AttentionConfig
from ..loader import Linear, Loader
from ..workspace import Rows, Widths
from .base import Mixer


@dataclass(frozen=True)
class AttentionWeights:
    """The tensors of one layer's attention; None where the architecture has none."""

    q: Linear
    k: Linear | None
    """None: the layer reads another's keys and values."""
    v: Linear | None
    """None, though there is `k`: values are what `k` gives."""
    output: Linear
    gate: Linear | None
    n_gates: int
    """Rows of the gate: one for each element of the query heads, or for each of these heads."""
    q_norm: Array | None
    k_norm: Array | None
    sinks: F32 | None
    """On the host: the attention object reads them."""

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: AttentionConfig
    ) -> AttentionWeights:
        """Read `{prefix}.attn_q`, `attn_k`, `attn_v` (or `attn_qkv`), `attn_output` and norms."""
        n_q, n_kv = layer.n_heads * layer.head_dim, layer.n_kv_heads * layer.head_dim
        beside, gated = (config.architecture.output_gate == x for x in ("attn_q", "attn_gate"))
        rows = {"attn_q": n_q * (2 if beside else 1), "attn_k": n_kv, "attn_v": n_kv}
        if layer.reads is not None:
            _ignore_kv(loader, prefix, rows, config.n_embd)
            rows = {"attn_q": n_q}
        elif config.architecture.value_norm and f"{prefix}.attn_v.weight" not in loader:
            del rows["attn_v"]
        q, k, v, *_ = *_qkv(loader, prefix, rows, config.n_embd), None, None
        if config.architecture.adds_to_normed and layer.rope is None and k is not None:
            # The same for all keys of a query, which a softmax does not see; BERT has it.
            k = replace(k, bias=None)

        of_heads = (layer.n_heads, config.n_embd)
        n_gates = n_q
        if config.architecture.softplus_gate and loader.has(f"{prefix}.attn_gate.weight", of_heads):
            n_gates = layer.n_heads

        sinks = None
        if config.architecture.attention_sinks:
            sinks = loader.values(f"{prefix}.attn_sinks.weight", layer.n_heads)

        def norm(name: str, n: int) -> Array | None:
            head_dim, full = layer.head_dim, f"{prefix}.{name}.weight"
            match config.architecture.qk_norm:
                case "head":
                    return loader.vector(full, head_dim)
                case "head, if present":
                    return loader.optional(full, head_dim)
                case "row":
                    return loader.vector(full, n)
                case "each head" if f"{prefix}.attn_q_norm.weight" in loader:
                    return loader.vector(full, n // head_dim, head_dim)
            return None

        return AttentionWeights(
            q,
            k,
            v,
            output=loader.linear(f"{prefix}.attn_output", config.n_embd, n_q),
            gate=loader.linear(f"{prefix}.attn_gate", n_gates, config.n_embd) if gated else None,
            n_gates=n_gates,
            q_norm=norm("attn_q_norm", n_q),
            k_norm=None if k is None else norm("attn_k_norm", n_kv),
            sinks=sinks,
        )


def _qkv(loader: Loader, prefix: str, rows: dict[str, int], n_cols: int) -> tuple[Linear, ...]:
    """Query, key and value projections, from three tensors or from the rows of one."""
    if f"{prefix}.attn_qkv.weight" not in loader:
        return tuple(loader.linear(f"{prefix}.{name}", n, n_cols) for name, n in rows.items())
    fused = loader.split(f"{prefix}.attn_qkv", list(rows.values()), n_cols)
    # A fused matrix may have separate biases.
    return tuple(
        replace(part, bias=loader.optional(f"{prefix}.{name}.bias", n))
        if part.bias is None
        else part
        for part, (name, n) in zip(fused, rows.items())
    )


def _ignore_kv(loader: Loader, prefix: str, rows: dict[str, int], n_cols: int) -> None:
    """Files may have keys and values of layers that read those of others."""
    shapes = {f"{prefix}.{name}.weight": (rows[name], n_cols) for name in ("attn_k", "attn_v")}
    for name, shape in shapes.items():
        if name in loader:
            loader.tensor(name, shape)
    if (name := f"{prefix}.attn_k_norm.weight") in loader:
        loader.ignore(name)


class AttentionMixer(Mixer[AttentionWeights, AttentionConfig]):
    """The attention of one layer."""

    def _prepare(self) -> None:
        layer, work, architecture = self._layer, self._work, self._config.architecture
        self._q_shape = layer.n_heads, layer.head_dim
        self._kv_shape = layer.n_kv_heads, layer.head_dim
        self._n_q, self._n_kv = math.prod(self._q_shape), math.prod(self._kv_shape)
        self._mixed_in = work.input(f"mixed {self._n_q}")
        self._ones = None
        if architecture.qk_norm == "each head" or architecture.value_norm:
            self._ones = work.device.put(np.ones(layer.head_dim, np.float32))
        self._unit_gates = None
        if (n_gates := self._weights.n_gates) < self._n_q:
            self._unit_gates = work.device.put(np.ones((work.max_chunk, n_gates), np.float32))

    @staticmethod
    def widths(config: ModelConfig, layer: AttentionConfig) -> Widths:
        """See `Mixer`; columns of the output projection name its input: layers may differ in
        them."""
        n_q, n_kv = layer.n_heads * layer.head_dim, layer.n_kv_heads * layer.head_dim
        rows = {"q": n_q, "k": n_kv, "v": n_kv, "mixed": n_q, "temperature": 1}
        if (gate := config.architecture.output_gate) != "none":
            rows["output_gate"] = n_q
        if gate == "attn_q":
            rows["q_and_gate"] = 2 * n_q
        return Widths(rows, {f"mixed {n_q}": n_q})

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """rope(k) and v of all rows, rope(q) and the gate of `outputs`.

        Rotates the other rows of q, too, though nobody reads them.
        """
        weights, config, pointwise = self._weights, self._config, self._work.device.pointwise
        architecture = config.architecture
        beside = architecture.output_gate == "attn_q"
        names = {"k": weights.k, "v": weights.v}
        of_all = [(x, b.array(name, self._n_kv)) for name, x in names.items() if x]
        q = outputs.array("q_and_gate", 2 * self._n_q) if beside else outputs.array("q", self._n_q)
        wanted = [(weights.q, q)]
        if weights.gate is not None:
            wanted.append((weights.gate, outputs.array("output_gate", weights.n_gates)))
        self._multiply(source, (b, outputs), of_all, wanted)
        if beside:
            halves = (outputs.array(name, *self._q_shape) for name in ("q", "output_gate"))
            n_heads, head_dim = self._q_shape
            pointwise.split_pairs(outputs.array("q_and_gate", n_heads, 2, head_dim), *halves)
        n_kv_heads, head_dim = self._kv_shape if weights.k is not None else (0, self._q_shape[1])
        q_heads, k_heads = b.array("q", *self._q_shape), b.array("k", n_kv_heads, head_dim)
        if architecture.value_norm and weights.k is not None:
            self._norm_values(b)
        if not architecture.qk_norm_after_rope:
            self._norm_heads(q_heads, k_heads)
        if self._rotation is not None:
            pointwise.rope(q_heads, k_heads, angles[self._rotation], architecture.rope)
        if architecture.qk_norm_after_rope:
            self._norm_heads(q_heads, k_heads)
        if config.temperature_scale:
            pointwise.scale_rows(b.array("q", self._n_q), b.array("temperature"))

    def _norm_values(self, b: Rows) -> None:
        """v = norm of v, or of k before its own norm where the layer has no `attn_v`."""
        assert self._ones is not None
        source = "k" if self._weights.v is None else "v"
        x, out = (b.array(name, *self._kv_shape) for name in (source, "v"))
        rows, normed = (heads.reshape(-1, self._kv_shape[1]) for heads in (x, out))
        self._work.device.pointwise.rms_norm(rows, self._ones, self._config.norm_eps, normed)

    def _norm_heads(self, q_heads: Array, k_heads: Array) -> None:
        """Norm q and k in place, if the architecture does."""
        weights, eps = self._weights, self._config.norm_eps
        pointwise = self._work.device.pointwise
        for heads, weight in ((q_heads, weights.q_norm), (k_heads, weights.k_norm)):
            if weight is None:
                continue
            if self._config.architecture.qk_norm != "each head":
                rows = heads.reshape(-1, len(weight))
                pointwise.rms_norm(rows, weight, eps, rows)
            else:
                assert self._ones is not None
                rows = heads.reshape(-1, self._q_shape[1])
                pointwise.layer_norm(rows, self._ones, None, eps, rows)
                pointwise.multiply_row(heads.reshape(-1, len(weight)), weight)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """Append K and V, if the layer has some, and attend."""
        q, kv = self._q_shape, self._kv_shape
        k, v = (None if self._weights.k is None else tokens.array(x, *kv) for x in ("k", "v"))
        q_heads, mixed = outputs.array("q", *q), outputs.array("mixed", *q)
        attention(self._number, q_heads, k, v, mixed)

    def output(self, b: Rows, out: Array) -> None:
        """The output projection, of what was mixed or gated."""
        mixed = b.array("mixed", self._n_q)
        if self._config.architecture.output_gate != "none":
            self._apply_gate(b, mixed)
        self._work.linear(self._mixed_in.set(mixed), self._weights.output, out)

    def _apply_gate(self, b: Rows, mixed: Array) -> None:
        """mixed *= f(gate), f the sigmoid or the softplus, of each element or of each head."""
        pointwise, gate = self._work.device.pointwise, b.array("output_gate", self._weights.n_gates)
        apply = (
            pointwise.softplus_gate
            if self._config.architecture.softplus_gate
            else pointwise.sigmoid_gate
        )
        if self._unit_gates is None:
            apply(mixed, gate, mixed)
        else:
            apply(self._unit_gates[: len(gate)], gate, gate)
            rows = b.array("mixed", *self._q_shape).reshape(-1, self._q_shape[1])
            pointwise.scale_rows(rows, gate.reshape(-1))
