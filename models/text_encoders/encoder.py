"""The forward pass of text encoders, over the tokens of several texts at once.

The rows of all texts stand one behind the other, without padding: matrix products, norms and
activations do not know where a text ends; attention does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32, I32
from ...ops.attention.texts.work import Texts
from ...ops.device import Array, Device
from ..config.text_encoders import TextEncoderConfig
from ..errors import ModelError
from ..layer import Layer
from ..loader import Linear
from ..rope import Rotations
from ..widths import widths_of
from ..workspace import Rows as Memory
from ..workspace import Workspace
from .weights import TextEncoderWeights


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
        self._work = Workspace(config, self._device, max_rows, widths_of(config))
        self._rotations = Rotations(config, weights, max_rows, self._device)
        self._attention = _TextAttention(config, self._device)
        self._layers = [
            Layer(index, weights, rotation, config, self._work)
            for index, rotation in enumerate(self._rotations.of_layer)
        ]

    def forward(self, rows: Rows) -> F32:
        """Hidden states after the last norm, float32 (N, D), which the next call overwrites.

        Raises `ModelError` for no or more than `max_rows` tokens, texts longer than the model's
        context, ids outside the vocabulary, and types that the model does not have.
        """
        self._check(rows)
        b = self._work.rows(0, len(rows.ids))
        positions = np.concatenate([np.arange(n) for n in rows.lengths])
        self._embed(rows, positions, b)
        tables = self._rotations.angles(0, max(rows.lengths), long=False)
        angles = [table[positions] for table in tables]
        self._attention.texts = Texts(rows.lengths)
        for layer in self._layers:
            layer.project(b, b, angles)
            layer.mix(self._attention, b, b)
            layer.finish(b)
        hidden: F32 = self._device.get(b.normed)
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

    def _embed(self, rows: Rows, positions: NDArray[np.int64], b: Memory) -> None:
        """`b.x` and `b.normed` for the first layer."""
        weights, x = self.weights, b.x
        self._device.get_rows(weights.token_embd, rows.ids, x)
        if self.config.embedding_scale != 1.0:
            self._device.pointwise.scale(x, self.config.embedding_scale)
        if weights.token_types is not None:
            x += weights.token_types[rows.types]
        if weights.position_embd is not None:
            x += weights.position_embd[positions]
        if weights.token_embd_norm is not None:
            self._work.norm(weights.token_embd_norm, x, x)
        if weights.norms[0] is not None:
            self._work.norm(weights.norms[0], x, b.normed)
        else:
            b.normed[:] = x

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


class _TextAttention:
    """The interface `Attention`: every token of a text attends to every other, or to those around.

    texts: what the pass reads.
    """

    every_query, graphs, unrecorded = True, None, frozenset[int]()

    def __init__(self, config: TextEncoderConfig, device: Device) -> None:
        self.texts = Texts([1])
        self._windows = [layer.window or 0 for layer in config.attention_layers]
        self._attend, self._scratch = device.text_attention, device.text_scratch(config.head_dim)

    def state(self, layer: int) -> Sequence[Array]:
        """No layer has one."""
        return ()

    def __call__(self, layer: int, q: Array, k: Array | None, v: Array | None, out: Array) -> None:
        """See `Attention`."""
        self._attend((q, k, v), self.texts, self._windows[layer], out, self._scratch)
