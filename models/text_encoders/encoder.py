"""The forward pass of text encoders, over the tokens of several texts at once.

The rows of all texts stand one behind the other, without padding: matrix products, norms and
activations do not know where a text ends; attention does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...ops.device import Activations
from ..config.text_encoders import TextEncoderConfig
from ..errors import ModelError
from ..loader import Linear, Norm
from .attention import Span, attend, rotation, spans_of
from .weights import LayerWeights, RoutedWeights, TextEncoderWeights

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Rows:
    """The tokens of several texts, one behind the other.

    ids, types: int32 (N,), tokens and their types (0, or 1 in the second text of a pair). lengths:
    tokens of each text, of sum N. Texts of one length should be neighbours: they are one operation.
    """

    ids: I32
    types: I32
    lengths: tuple[int, ...]


class TextEncoder:
    """One text encoder, in memory for `max_rows` tokens. Not reentrant: one thread runs it."""

    def __init__(
        self, config: TextEncoderConfig, weights: TextEncoderWeights, max_rows: int
    ) -> None:
        self.config, self.weights, self.max_rows = config, weights, max_rows
        self._device = device = weights.device
        n_embd, n_ff = config.n_embd, config.n_ff
        rows = partial(device.memory, dtype=np.float32)
        self._x, self._branch, self._normed = (rows((max_rows, n_embd)) for _ in range(3))
        self._q, self._mixed = (
            rows((max_rows, config.n_heads * config.head_dim)) for _ in range(2)
        )
        self._k, self._v = (rows((max_rows, config.n_kv_heads * config.head_dim)) for _ in range(2))
        self._up = rows((max_rows, n_ff))
        gated = config.architecture.gate != "none"
        self._gate = rows((max_rows, n_ff)) if gated else None
        self._routed = None
        if (routing := config.routing) is not None and any(config.routed):
            scratch = device.experts_scratch(routing, n_embd, n_ff, max_rows)
            self._routed = rows((max_rows, routing.n_experts)), scratch
        self._in = device.activations(max_rows, n_embd)
        self._mixed_in = device.activations(max_rows, config.n_heads * config.head_dim)
        self._down_in = device.activations(max_rows, n_ff)

    def forward(self, rows: Rows) -> F32:
        """Hidden states after the last norm, float32 (N, D), which the next call overwrites.

        Raises `ModelError` for no or more than `max_rows` tokens, texts longer than the model's
        context, ids outside the vocabulary, and types that the model does not have.
        """
        self._check(rows)
        config, weights, n = self.config, self.weights, len(rows.ids)
        x = self._x[:n]
        spans = spans_of(rows.lengths)
        positions = np.concatenate([np.tile(np.arange(t), b) for _, b, t in spans])
        self._embed(rows, positions, x)
        angles = self._angles(positions)
        for index, layer in enumerate(weights.layers):
            windowed = config.windowed[index]
            window = config.window if windowed else 0
            self._layer(layer, x, spans, window, angles[windowed] if angles else None)
        if weights.output_norm is not None:
            self._norm(weights.output_norm, x, x)
        hidden: F32 = self._device.get(x)
        return hidden

    def scores(self, first: F32) -> F32:
        """What the classifier makes of first hidden states float32 (B, D): float32 (B, labels).

        Raises `ModelError` for a model without a classifier.
        """
        classifier = self.weights.classifier
        if classifier is None:
            raise ModelError("cannot score texts: the model has no classifier (tensors cls)")
        x = np.ascontiguousarray(first, np.float32)
        n_embd, n_labels = self.config.n_embd, self.config.n_labels
        if classifier.dense is not None:
            x = self._product(classifier.dense, x, n_embd if classifier.output else n_labels)
            if classifier.output is not None:
                x = np.tanh(x)
        return x if classifier.output is None else self._product(classifier.output, x, n_labels)

    def projected(self, pooled: F32) -> F32:
        """What the dense layers make of pooled hidden states float32 (B, D): float32 (B, D)."""
        x = pooled
        for linear, width in zip(self.weights.dense, (self.config.n_dense, self.config.n_embd)):
            x = self._product(linear, x, width)
        return x

    def _product(self, linear: Linear, x: F32, width: int) -> F32:
        source = self._device.activations(*x.shape)
        out = self._device.memory((len(x), width), np.float32)
        self._linear(source.set(x), linear, out)
        made: F32 = self._device.get(out)
        return made

    def _embed(self, rows: Rows, positions: NDArray[np.int64], x: F32) -> None:
        weights = self.weights
        self._device.get_rows(weights.token_embd, rows.ids, x)
        if self.config.architecture.gemma:
            self._device.pointwise.scale(x, self.config.n_embd**0.5)
        if weights.token_types is not None:
            x += weights.token_types[rows.types]
        if weights.position_embd is not None:
            x += weights.position_embd[positions]
        if weights.token_embd_norm is not None:
            self._norm(weights.token_embd_norm, x, x)

    def _angles(self, positions: NDArray[np.int64]) -> tuple[F32, F32] | None:
        """Of layers without and with a window; None where positions are no rotations."""
        config = self.config
        if config.architecture.positions != "rope":
            return None
        whole = rotation(positions, config.rope_base, config.head_dim)
        if not any(config.windowed):
            return whole, whole
        return whole, rotation(positions, config.window_rope_base, config.head_dim)

    def _layer(
        self, layer: LayerWeights, x: F32, spans: list[Span], window: int, angles: F32 | None
    ) -> None:
        """x = layer(x), float32 (N, D)."""
        device, n, config = self._device, len(x), self.config
        branch = self._branch[:n]
        source = self._in.set(self._normed_input(layer.attn_norm, x))
        q, k, v = self._q[:n], self._k[:n], self._v[:n]
        products = ((layer.q, q), (layer.k, k), (layer.v, v))
        device.linear_many(source, [part.weight for part, _ in products], [q, k, v])
        for part, out in products:
            self._add_bias(part, out)
        e, mixed = config.head_dim, self._mixed[:n]
        if layer.q_norm is not None and layer.k_norm is not None:
            for norm, rows in ((layer.q_norm, q.reshape(-1, e)), (layer.k_norm, k.reshape(-1, e))):
                self._norm(norm, rows, rows)
        heads = q.reshape(n, -1, e), k.reshape(n, -1, e), v.reshape(n, -1, e)
        if angles is not None:
            device.pointwise.rope(heads[0], heads[1], angles, "neox")
        attend(heads, spans, window, device.threads, mixed.reshape(n, -1, e))
        self._linear(self._mixed_in.set(mixed), layer.attn_output, branch)
        self._add(x, branch, layer.attn_output_norm)
        self._feed_forward(layer, x, branch)
        self._add(x, branch, layer.layer_output_norm)

    def _feed_forward(self, layer: LayerWeights, x: F32, branch: F32) -> None:
        """branch = what the layer's dense network, or its experts, give."""
        pointwise, n, weights = self._device.pointwise, len(x), layer.feed_forward
        source, up = self._in.set(self._normed_input(layer.ffn_norm, x)), self._up[:n]
        if isinstance(weights, RoutedWeights):
            self._experts(source, weights, branch)
            return
        self._linear(source, weights.up, up)
        if weights.gate is None or self._gate is None:
            pointwise.gelu(up)
        else:
            gate = self._gate[:n]
            self._linear(source, weights.gate, gate)
            gelu = self.config.architecture.activation == "gelu"
            (pointwise.geglu if gelu else pointwise.swiglu)(gate, up, up)
        self._linear(self._down_in.set(up), weights.down, branch)

    def _experts(self, source: Activations, weights: RoutedWeights, branch: F32) -> None:
        """branch = the weighted sum of the chosen experts."""
        assert self._routed is not None
        all_logits, scratch = self._routed
        logits = all_logits[: len(branch)]
        self._linear(source, weights.router, logits)
        self._device.experts(source, logits, weights.experts, scratch, branch)
        if weights.bias is not None:
            self._device.pointwise.add_row(branch, weights.bias)

    def _normed_input(self, norm: Norm | None, x: F32) -> F32:
        if norm is None:
            return x
        normed: F32 = self._normed[: len(x)]
        self._norm(norm, x, normed)
        return normed

    def _add(self, x: F32, branch: F32, norm: Norm | None) -> None:
        """x = x + branch, normed if there is a norm; of Gemma, x + the normed branch."""
        pointwise = self._device.pointwise
        if norm is not None and not self.config.architecture.gemma:
            eps = self.config.norm_eps
            pointwise.add_layer_norm(x, branch, norm.weight, norm.bias, eps, x)
            return
        if norm is not None:
            self._norm(norm, branch, branch)
        pointwise.add(x, branch, x)

    def _norm(self, norm: Norm, x: F32, out: F32) -> None:
        pointwise, eps = self._device.pointwise, self.config.norm_eps
        if self.config.architecture.gemma:
            pointwise.rms_norm(x, norm.weight, eps, out)
        else:
            pointwise.layer_norm(x, norm.weight, norm.bias, eps, out)

    def _linear(self, source: Activations, linear: Linear, out: F32) -> None:
        self._device.linear(source, linear.weight, out)
        self._add_bias(linear, out)

    def _add_bias(self, linear: Linear, out: F32) -> None:
        if linear.bias is not None:
            self._device.pointwise.add_row(out, linear.bias)

    def _check(self, rows: Rows) -> None:
        config, n = self.config, len(rows.ids)
        if not 1 <= n <= self.max_rows or n != sum(rows.lengths) or n != len(rows.types):
            raise ModelError(
                f"cannot run the model: {n} tokens in texts of {sum(rows.lengths)}, expected 1 to "
                f"{self.max_rows}"
            )
        if max(rows.lengths) > config.n_ctx_train or min(rows.lengths) < 1:
            raise ModelError(
                f"cannot run the model: a text of {max(rows.lengths)} tokens, expected 1 to "
                f"{config.n_ctx_train}"
            )
        for what, values, stop in (
            ("token id", rows.ids, config.n_vocab),
            ("token type", rows.types, max(2, config.n_token_types)),
        ):
            if values.min() < 0 or values.max() >= stop:
                raise ModelError(f"cannot run the model: a {what} outside 0 to {stop - 1}")
