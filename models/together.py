"""Passes over single tokens of several contexts, which read the weights once for all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ops.device import Array, Recorded
from .attention import Attention
from .config import ModelConfig
from .transformer import Transformer
from .weights import Weights
from .workspace import Rows


class NextToken(NamedTuple):
    """The next token of one context."""

    id: int
    position: int
    attention: Attention
    """Holds keys and values of the positions before it."""
    n_ctx: int
    """The size of the context, see `Transformer.forward`."""


class Together(Transformer):
    """The forward pass of B contexts, one token each, in memory for up to `most` of them.

    Embeddings, matrix products, norms and feed-forwards take B rows at once; mixers mix row by row,
    each with the K and V, or the states, of its context. On the CPU a row has the bits that it has
    alone, whatever the others are.
    """

    def __init__(self, config: ModelConfig, weights: Weights, most: int) -> None:
        super().__init__(config, weights, most, alone=True)
        self._each = [self._work.rows(i, i + 1) for i in range(most)]
        self._parts: dict[int, tuple[Rows, list[Recorded]]] = {}

    def read(self, tokens: list[NextToken]) -> Array:
        """Hidden states after `output_norm` of each token, the device's float32 (B, n_embd), which
        the next call overwrites.

        Raises `ModelError` for ids outside the vocabulary, or more tokens than there is memory for.
        """
        n, put = len(tokens), self.device.put
        ids = np.array([token.id for token in tokens], np.int32)
        positions = [token.position for token in tokens]
        self._check(ids, min(positions, default=0), n)
        b, parts = self._parts_for(n)
        put(ids, b.ids)
        if self._per_layer is not None:
            self._per_layer.put(ids, n)
        if self.config.temperature_scale:
            factors = [self._temperatures(position, 1) for position in positions]
            put(np.concatenate(factors), b.array("temperature"))
        self._rotations.angles_of(positions, [self._is_long(token.n_ctx) for token in tokens])
        first, *others = parts
        first.run()
        for layer, part in zip(self._layers, others, strict=True):
            for token, row in zip(tokens, self._each):
                layer.mixer.mix(token.attention, row, row)
            part.run()
        return b.normed

    def _is_long(self, n_ctx: int) -> bool:
        return n_ctx > self.config.n_ctx_orig

    def _parts_for(self, n: int) -> tuple[Rows, list[Recorded]]:
        """What n rows compute from each layer's mixing to the next, recorded once."""
        if n not in self._parts:
            b, first = self._work.rows(0, n), [0] * n
            angles = self._rotations.angles_of(first, [False] * n)
            record, n_parts = self.device.record, self.config.n_layers + 1
            parts = [record(self._between, index, b, angles) for index in range(n_parts)]
            self._parts[n] = b, parts
        return self._parts[n]
