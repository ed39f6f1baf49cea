"""Routed experts: each token takes a few of many networks, and perhaps one that all take.

In some models experts read and write rows of another width, between two matrices for all of them:

    out = latent_up (experts (latent_down x)) + shared(x)

In gemma4 both have norms of their own, and the router reads x / rms(x) * scale / sqrt(D):

    out = norm(experts(norm(x))) + norm(shared(normed x))

Source of that: llama.cpp, `src/models/gemma4.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ops.device import Activations, Array, ExpertMatrix
from ...ops.experts import ExpertWeights
from ..config import ModelConfig
from ..config.layers import ExpertsConfig
from ..loader import Linear, Loader, Norm
from ..workspace import Rows, Widths, Workspace
from .dense import Dense, DenseWeights


@dataclass(frozen=True)
class ApartWeights:
    """What the router, the experts and the shared network have of their own."""

    router_scale: Array
    """float32 (D,), divided by sqrt(D)."""
    shared_post_norm: Norm
    norm: Norm
    post_norm: Norm

    @staticmethod
    def load(loader: Loader, prefix: str, n_embd: int) -> ApartWeights:
        """Read `{prefix}.ffn_gate_inp.scale` and the norms."""
        scale = loader.values(f"{prefix}.ffn_gate_inp.scale", n_embd) / np.float32(n_embd**0.5)
        return ApartWeights(
            router_scale=loader.device.put(scale),
            shared_post_norm=loader.norm(f"{prefix}.post_ffw_norm_1", n_embd),
            norm=loader.norm(f"{prefix}.pre_ffw_norm_2", n_embd),
            post_norm=loader.norm(f"{prefix}.post_ffw_norm_2", n_embd),
        )


@dataclass(frozen=True)
class ExpertsWeights:
    """The tensors of one layer's experts."""

    sizes: ExpertsConfig
    router: Linear
    experts: ExpertWeights
    shared: DenseWeights | None
    shared_gate: Linear | None
    latent: tuple[Linear, Linear] | None
    """To the width of the experts' rows and back; None: it is n_embd."""
    apart: ApartWeights | None
    bias: Array | None
    """Added to what the experts give."""

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: ExpertsConfig
    ) -> ExpertsWeights:
        """Read `{prefix}.ffn_gate_inp`, the experts', and `ffn_*_shexp` (or a dense network's)."""
        n_embd, shared, gate_row, latent = config.n_embd, None, None, None
        router = loader.linear(f"{prefix}.ffn_gate_inp", layer.routing.n_experts, n_embd)
        experts = _experts(loader, prefix, config, layer)
        if layer.shared is not None:
            suffix = "" if layer.apart else "_shexp"
            shared = DenseWeights.load(loader, prefix, config, layer.shared, suffix)
            if layer.shared_gate:
                gate_row = loader.row(f"{prefix}.ffn_gate_inp_shexp", n_embd)
        if layer.n_latent:
            narrow = loader.linear(f"{prefix}.ffn_latent_down", layer.n_latent, n_embd)
            latent = narrow, loader.linear(f"{prefix}.ffn_latent_up", n_embd, layer.n_latent)
        return ExpertsWeights(
            layer,
            router,
            experts,
            shared,
            gate_row,
            latent,
            ApartWeights.load(loader, prefix, n_embd) if layer.apart else None,
            loader.optional(f"{prefix}.ffn_exps.bias", n_embd),
        )


def _experts(
    loader: Loader, prefix: str, config: ModelConfig, layer: ExpertsConfig
) -> ExpertWeights:
    """The stacked `ffn_gate_exps`, `ffn_up_exps` (or `ffn_gate_up_exps`), `ffn_down_exps`, and
    `exp_probs_b`."""
    n, n_ff, n_embd = layer.routing.n_experts, layer.n_ff, layer.n_latent or config.n_embd
    name = f"{prefix}.ffn_{{}}_exps".format
    gate: ExpertMatrix | None = None
    if config.architecture.gated and f"{name('gate_up')}.weight" in loader:
        gate, up = loader.experts(name("gate_up"), (n, 2 * n_ff, n_embd)).halves()
    else:
        if config.architecture.gated:
            gate = loader.experts(name("gate"), (n, n_ff, n_embd))
        up = loader.experts(name("up"), (n, n_ff, n_embd))
    down = loader.experts(name("down"), (n, n_embd, n_ff))
    bias, choice_bias = f"{prefix}.exp_probs_b.bias", None
    if layer.choice_bias == "required" or (layer.choice_bias == "optional" and bias in loader):
        choice_bias = loader.vector(bias, n)
    sizes = {"gate": n_ff, "up": n_ff, "down": n_embd} if layer.biases else {}
    activation = config.architecture.activation
    return ExpertWeights(
        layer.routing,
        "ungated-gelu" if gate is None and activation == "gelu" else activation,
        gate,
        up,
        down,
        choice_bias=choice_bias,
        scales=loader.optional(f"{name('down')}.scale", n) if layer.apart else None,
        **{f"{part}_bias": loader.rows(f"{name(part)}.bias", (n, k)) for part, k in sizes.items()},
    )


class Experts:
    """The experts of one layer."""

    def __init__(self, weights: ExpertsWeights, config: ModelConfig, work: Workspace) -> None:
        self._weights, self._work, self._config = weights, work, config
        layer = weights.sizes
        self._n_experts, self._n_latent = layer.routing.n_experts, layer.n_latent
        width = layer.n_latent or config.n_embd
        self._scratch = work.experts_scratch(layer.routing, width, layer.n_ff)
        self._shared = None
        if weights.shared is not None:
            self._shared = Dense(weights.shared, config, work)
            self._ones = work.device.put(np.ones((work.max_chunk, 1), np.float32))

    @staticmethod
    def widths(config: ModelConfig, layer: ExpertsConfig) -> list[Widths]:
        """Its memory, and that of the shared network."""
        rows, inputs = {"router": layer.routing.n_experts}, {}
        if layer.n_latent:
            inputs = dict.fromkeys(("latent", "of_latent"), layer.n_latent)
        if layer.apart:
            inputs["experts_in"] = config.n_embd
        widths = [Widths(rows | inputs, inputs)]
        if layer.shared is not None:
            shared = Widths({"shared": config.n_embd, "shared_gate": 1}, {})
            widths += [shared, Dense.widths(config, layer.shared)]
        return widths

    def __call__(self, source: Activations, b: Rows, out: Array) -> None:
        """Write the layer's branch, float32 (T, n_embd), of the normed rows that `source` holds."""
        weights, work = self._weights, self._work
        logits = b.array("router", self._n_experts)
        if weights.apart is not None:
            of_experts = self._normed_apart(weights.apart, b, logits)
            work.experts(of_experts, logits, weights.experts, self._scratch, b, out)
            work.norm(weights.apart.post_norm, out, out)
        else:
            work.linear(source, weights.router, logits)
            if weights.latent is not None:
                self._latent(source, weights.latent, logits, b, out)
            else:
                work.experts(source, logits, weights.experts, self._scratch, b, out)
            if weights.bias is not None:
                work.device.pointwise.add_row(out, weights.bias)
        if self._shared is not None:
            shared = b.array("shared", self._config.n_embd)
            self._shared(source, b, shared)
            if weights.shared_gate is not None:
                self._gate_shared(source, weights.shared_gate, b, shared)
            if weights.apart is not None:
                work.norm(weights.apart.shared_post_norm, shared, shared)
            work.device.pointwise.add(out, shared, out)

    def _normed_apart(self, apart: ApartWeights, b: Rows, logits: Array) -> Activations:
        """The router's logits, and the input of the experts, both of `b.x`."""
        config, work = self._config, self._work
        row, source = b.array("experts_in", config.n_embd), work.input("experts_in")
        work.device.pointwise.rms_norm(b.x, apart.router_scale, config.norm_eps, row)
        work.linear(source.set(row), self._weights.router, logits)
        work.norm(apart.norm, b.x, row)
        return source.set(row)

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
