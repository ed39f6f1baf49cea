"""The forward pass of text encoders, over the tokens of several texts at once.

The rows of all texts stand one behind the other, without padding: matrix products, norms and
activations do not know where a text ends; attention does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32, I32
from ...ops.attention.texts.work import Texts
from ...ops.device import Activations
from ..config.layers import DenseConfig
from ..config.text_encoders import TextEncoderConfig
from ..errors import ModelError
from ..feed_forwards import Dense, Experts, feed_forward_of
from ..loader import Linear, Norm
from ..workspace import Rows as Memory
from ..workspace import Widths, Workspace
from .weights import LayerWeights, TextEncoderWeights


@dataclass(frozen=True)
class Rows:
    """The tokens of several texts, one behind the other.

    ids, types: int32 (N,), tokens and their types (0, or 1 in the second text of a pair). lengths:
    tokens of each text, of sum N.
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
        self._device = weights.device
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        gated = config.architecture.gate != "none"
        rows = dict.fromkeys(("x", "branch", "normed"), config.n_embd)
        rows |= {"q": n_q, "k": n_kv, "v": n_kv, "mixed": n_q}
        inputs = {"normed": config.n_embd, "mixed": n_q}
        widths = [Widths(rows, inputs), Dense.widths(DenseConfig(config.n_ff), gated=gated)]
        if (experts := config.experts) is not None:
            widths += Experts.widths(config, experts, gated=gated)
        self._work = work = Workspace(config, self._device, max_rows, Widths.widest(widths))
        self._normed_in, self._mixed_in = work.input("normed"), work.input("mixed")
        self._text_scratch = self._device.text_scratch(config.head_dim)
        self._feed_forwards = [
            feed_forward_of(layer.feed_forward, config, work) for layer in weights.layers
        ]

    def forward(self, rows: Rows) -> F32:
        """Hidden states after the last norm, float32 (N, D), which the next call overwrites.

        Raises `ModelError` for no or more than `max_rows` tokens, texts longer than the model's
        context, ids outside the vocabulary, and types that the model does not have.
        """
        self._check(rows)
        config, weights = self.config, self.weights
        b, texts = self._work.rows(0, len(rows.ids)), Texts(rows.lengths)
        positions = np.concatenate([np.arange(n) for n in rows.lengths])
        self._embed(rows, positions, b.x)
        angles = self._angles(positions)
        for index, layer in enumerate(weights.layers):
            windowed = config.windowed[index]
            window = config.window if windowed else 0
            self._attend(layer, b, texts, window, angles[windowed] if angles else None)
            self._join(b, layer.attn_output_norm)
            self._feed_forwards[index](self._source(layer.ffn_norm, b), b, b.branch)
            self._join(b, layer.layer_output_norm)
        if weights.output_norm is not None:
            self._work.norm(weights.output_norm, b.x, b.x)
        hidden: F32 = self._device.get(b.x)
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
        self._work.linear(source.set(x), linear, out)
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
            self._work.norm(weights.token_embd_norm, x, x)

    def _angles(self, positions: NDArray[np.int64]) -> tuple[F32, F32] | None:
        """Of layers without and with a window; None where positions are no rotations."""
        config = self.config
        if config.architecture.positions != "rope":
            return None
        whole = _rotation(positions, config.rope_base, config.head_dim)
        if not any(config.windowed):
            return whole, whole
        return whole, _rotation(positions, config.window_rope_base, config.head_dim)

    def _attend(
        self, layer: LayerWeights, b: Memory, texts: Texts, window: int, angles: F32 | None
    ) -> None:
        """The branch of a layer's attention."""
        work, config, e = self._work, self.config, self.config.head_dim
        sizes = {"q": config.n_heads, "k": config.n_kv_heads, "v": config.n_kv_heads}
        rows = (b.array(name, n * e) for name, n in sizes.items())
        products = tuple(zip((layer.q, layer.k, layer.v), rows))
        work.multiply(self._source(layer.attn_norm, b), *products)
        work.add_biases(*products)
        q, k, v = (b.array(name, n, e) for name, n in sizes.items())
        for norm, heads in ((layer.q_norm, q), (layer.k_norm, k)):
            if norm is not None:
                work.norm(norm, heads.reshape(-1, e), heads.reshape(-1, e))
        if angles is not None:
            self._device.pointwise.rope(q, k, angles, "neox")
        mixed = b.array("mixed", config.n_heads, e)
        self._device.text_attention((q, k, v), texts, window, mixed, self._text_scratch)
        source = self._mixed_in.set(b.array("mixed", config.n_heads * e))
        work.linear(source, layer.attn_output, b.branch)

    def _source(self, norm: Norm | None, b: Memory) -> Activations:
        """x, normed if there is a norm, as the input of products."""
        if norm is None:
            return self._normed_in.set(b.x)
        self._work.norm(norm, b.x, b.normed)
        return self._normed_in.set(b.normed)

    def _join(self, b: Memory, norm: Norm | None) -> None:
        """x = x + branch, normed if there is a norm; of Gemma, x + the normed branch."""
        if norm is not None and not self.config.architecture.gemma:
            self._work.add_norm(norm, b.x, b.branch, b.x)
            return
        if norm is not None:
            self._work.norm(norm, b.branch, b.branch)
        self._device.pointwise.add(b.x, b.branch, b.x)

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


def _rotation(positions: NDArray[np.int64], base: float, n_rot: int) -> F32:
    """float32 (N, n_rot): cosines, then sines, of angles positions[t] * base^(-2i / n_rot)."""
    angles = positions[:, None] * base ** (-np.arange(0, n_rot, 2) / n_rot)
    table: F32 = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    return table
