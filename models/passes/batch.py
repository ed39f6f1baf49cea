"""Passes over tokens of several contexts, which read the weights once for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np

from ...ops.device import Array, Recorded
from ..attention import Attention
from ..config import ModelConfig
from ..weights import Weights
from ..workspace import Rows
from .transformer import Transformer


class NextTokens(NamedTuple):
    """The next token of one context, and guesses of those after it."""

    ids: Sequence[int]
    position: int
    """Of the first of them."""
    attention: Attention
    """Holds keys and values of the positions before it."""
    n_ctx: int
    """The size of the context, see `Transformer.forward`."""


class _PassGraph:
    """All operations of a pass, recorded for some contexts; each one's `graphs` hold it, until an
    address of that context changes."""

    def __init__(self, graph: Recorded, contexts: list[NextTokens]) -> None:
        self._graph: Recorded | None = graph
        self._parts = [(ref(one.attention), len(one.ids)) for one in contexts]

    def run(self) -> None:
        """See `Recorded`."""
        assert self._graph is not None
        self._graph.run()

    def holds_for(self, contexts: list[NextTokens], key: Hashable) -> bool:
        """Whether it was recorded for as many tokens of these contexts, and nothing has changed."""
        return len(contexts) == len(self._parts) and all(
            known() is one.attention
            and n == len(one.ids)
            and one.attention.graphs is not None
            and one.attention.graphs.get(key) is self
            for (known, n), one in zip(self._parts, contexts)
        )

    def drop(self) -> None:
        """Free what the graph keeps: contexts that go on may hold this object."""
        self._graph = None


class BatchTransformer(Transformer):
    """The forward pass of B contexts, one token each or some more, in memory for up to `most` rows.

    Embeddings, matrix products, norms and feed-forwards take all rows at once; mixers mix those of
    one context after the other, with its K and V, or its states. On the CPU a row has the bits that
    it has alone, whatever the others are.

    Where all contexts can be recorded, a pass of the same ones as the last pass is one graph; else
    there is one between the mixing of each two layers.
    """

    def __init__(self, config: ModelConfig, weights: Weights, most: int) -> None:
        super().__init__(config, weights, most, alone=True)
        self._each = [self._work.rows(i, i + 1) for i in range(most)]
        self._graph: _PassGraph | None = None
        self._last: list[tuple[int, int]] = []

    def read(self, contexts: list[NextTokens]) -> Array:
        """Hidden states after `output_norm` of all tokens, those of one context after the other:
        the device's float32 (rows, n_embd), which the next call overwrites.

        Raises `ModelError` for ids outside the vocabulary, or more tokens than there is memory for.
        """
        put, places = self.device.put, [(one, i) for one in contexts for i in range(len(one.ids))]
        n, positions = len(places), [one.position + i for one, i in places]
        ids = np.array([one.ids[i] for one, i in places], np.int32)
        self._check(ids, min(positions, default=0), n)
        b, is_long = self._work.rows(0, n), [self._is_long(one.n_ctx) for one, _ in places]
        put(ids, b.ids)
        if self._per_layer is not None:
            self._per_layer.put(ids, n)
        if self.config.temperature_scale:
            factors = [self._temperatures(position, 1) for position in positions]
            put(np.concatenate(factors), b.array("temperature"))
        angles = self._rotations.angles_of(positions, is_long)
        if (whole := self._pass_graph(contexts, b, angles)) is not None:
            whole.run()
            return b.normed
        for index, part in enumerate(self._graphs_for(False, n, b, angles)):
            part.run()
            if index < len(self._layers):
                self._mix(index, contexts)
        return b.normed

    def _is_long(self, n_ctx: int) -> bool:
        return n_ctx > self.config.n_ctx_orig

    def _mix(self, index: int, contexts: list[NextTokens]) -> None:
        """Mix the tokens of each context in layer `index`."""
        layer, first = self._layers[index], 0
        for one in contexts:
            n = len(one.ids)
            rows = self._each[first] if n == 1 else self._work.rows(first, first + n)
            layer.mix(one.attention, rows, rows)
            first += n

    def _pass_graph(
        self, contexts: list[NextTokens], b: Rows, angles: list[Array]
    ) -> _PassGraph | None:
        """The graph of the pass; None for contexts that cannot be recorded or are new together."""
        if self._graph is not None:
            if self._graph.holds_for(contexts, self):
                return self._graph
            self._graph.drop()
            self._graph = None
        last, self._last = self._last, [(id(one.attention), len(one.ids)) for one in contexts]
        graphs = [one.attention.graphs for one in contexts]
        if last != self._last or any(of_one is None for of_one in graphs):
            return None
        if any(one.attention.unrecorded for one in contexts):
            return None
        whole = _PassGraph(self.device.record(self._run_all, contexts, b, angles), contexts)
        self._graph = whole
        for of_one in graphs:
            assert of_one is not None
            of_one[self] = whole
        return whole

    def _run_all(self, contexts: list[NextTokens], b: Rows, angles: list[Array]) -> None:
        for index in range(self.config.n_layers):
            self._run_between(index, b, angles)
            self._mix(index, contexts)
        self._run_between(self.config.n_layers, b, angles)
