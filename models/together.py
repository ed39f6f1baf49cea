"""Passes over single tokens of several contexts, which read the weights once for all of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple
from weakref import ref

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


class _Whole:
    """All operations of a pass, recorded for some contexts; each one's `graphs` hold it, until an
    address of that context changes."""

    def __init__(self, graph: Recorded, tokens: list[NextToken]) -> None:
        self._graph: Recorded | None = graph
        self._attentions = [ref(token.attention) for token in tokens]

    def run(self) -> None:
        """See `Recorded`."""
        assert self._graph is not None
        self._graph.run()

    def holds_for(self, tokens: list[NextToken], key: Hashable) -> bool:
        """Whether it was recorded for the contexts of these tokens, and nothing has changed."""
        return len(tokens) == len(self._attentions) and all(
            known() is token.attention
            and token.attention.graphs is not None
            and token.attention.graphs.get(key) is self
            for known, token in zip(self._attentions, tokens)
        )

    def drop(self) -> None:
        """Free what the graph keeps: contexts that go on may hold this object."""
        self._graph = None


class Together(Transformer):
    """The forward pass of B contexts, one token each, in memory for up to `most` of them.

    Embeddings, matrix products, norms and feed-forwards take B rows at once; mixers mix row by row,
    each with the K and V, or the states, of its context. On the CPU a row has the bits that it has
    alone, whatever the others are.

    Where all contexts can be recorded, a pass of the same ones as the last pass is one graph; else
    there is one between the mixing of each two layers.
    """

    def __init__(self, config: ModelConfig, weights: Weights, most: int) -> None:
        super().__init__(config, weights, most, alone=True)
        self._each = [self._work.rows(i, i + 1) for i in range(most)]
        self._whole: _Whole | None = None
        self._last: list[int] = []

    def read(self, tokens: list[NextToken]) -> Array:
        """Hidden states after `output_norm` of each token, the device's float32 (B, n_embd), which
        the next call overwrites.

        Raises `ModelError` for ids outside the vocabulary, or more tokens than there is memory for.
        """
        n, put = len(tokens), self.device.put
        ids = np.array([token.id for token in tokens], np.int32)
        positions = [token.position for token in tokens]
        self._check(ids, min(positions, default=0), n)
        b, is_long = self._work.rows(0, n), [self._is_long(token.n_ctx) for token in tokens]
        put(ids, b.ids)
        if self._per_layer is not None:
            self._per_layer.put(ids, n)
        if self.config.temperature_scale:
            factors = [self._temperatures(position, 1) for position in positions]
            put(np.concatenate(factors), b.array("temperature"))
        angles = self._rotations.angles_of(positions, is_long)
        if (whole := self._whole_for(tokens, b, angles)) is not None:
            whole.run()
            return b.normed
        for index, part in enumerate(self._graphs_for(False, n, b, angles)):
            part.run()
            if index < len(self._layers):
                self._mix(index, tokens)
        return b.normed

    def _is_long(self, n_ctx: int) -> bool:
        return n_ctx > self.config.n_ctx_orig

    def _mix(self, index: int, tokens: list[NextToken]) -> None:
        """Mix each token in layer `index`, in its own context."""
        layer = self._layers[index]
        for token, row in zip(tokens, self._each):
            layer.mix(token.attention, row, row)

    def _whole_for(self, tokens: list[NextToken], b: Rows, angles: list[Array]) -> _Whole | None:
        """The graph of the pass; None for contexts that cannot be recorded or are new together."""
        if self._whole is not None:
            if self._whole.holds_for(tokens, self):
                return self._whole
            self._whole.drop()
            self._whole = None
        last, self._last = self._last, [id(token.attention) for token in tokens]
        graphs = [token.attention.graphs for token in tokens]
        if last != self._last or any(of_one is None for of_one in graphs):
            return None
        whole = self._whole = _Whole(self.device.record(self._all, tokens, b, angles), tokens)
        for of_one in graphs:
            assert of_one is not None
            of_one[self] = whole
        return whole

    def _all(self, tokens: list[NextToken], b: Rows, angles: list[Array]) -> None:
        for index in range(self.config.n_layers):
            self._between(index, b, angles)
            self._mix(index, tokens)
        self._between(self.config.n_layers, b, angles)
