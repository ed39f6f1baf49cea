"""Indexes of attend methods by which the rows of a prompt choose, many at a time."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ...ops.arrays import F32, I64, U32
from ...ops.select import (
    Range,
    RowRerankedScratch,
    RowSignatureScratch,
    RowSketchScratch,
    SignedQueries,
    Wanted,
    best_signed_rows,
    best_sketched_rows,
    nearest_rows,
)
from ...ops.select.work import ROWS
from ..attend import LayerView
from ..attend.hash import SignatureIndex
from ..attend.indexes.sketches import RERANKED, SketchIndex
from ..attend.sparse import SEED, CentredIndex, TokenIndex
from ..attend.sparse.frame import averaged


class RowIndex(TokenIndex):
    """The index of an attend method, by which many rows choose at a time."""

    @abstractmethod
    def index(self, layer: LayerView, chunk: int, stop: int) -> None:
        """Index the tokens below `stop` that are not yet, before rows of the chunk at `chunk`."""

    @abstractmethod
    def choose_rows(
        self, layer: LayerView, q: F32, among: Range, k: int, lists: U32, counts: I64
    ) -> int:
        """Choose for each row of q (R, H, E) as `choose` does: lists (R, J, room), counts (R, J).

        Returns the bytes of the index that one thread reads for them.
        """


class RowSignatures(RowIndex, SignatureIndex):
    """The index of `hash`, for many rows at a time."""

    def prepare(self, n_ctx: int, k: int) -> None:
        heads = self._config.n_heads, self._config.n_kv_heads
        self._rows = (
            RowSignatureScratch(*heads, n_ctx, k)
            if self._rerank == 1
            else RowRerankedScratch(*heads, n_ctx, self._rerank * k, self._layout)
        )

    def index(self, layer: LayerView, chunk: int, stop: int) -> None:
        assert self.column is not None
        first = int(self.column.filled[layer.index])
        if layer.config.window is not None:
            self.mark_skipped(layer, max(first, stop))
        elif first < stop:
            self.update(layer, first, stop)

    def choose_rows(
        self, layer: LayerView, q: F32, among: Range, k: int, lists: U32, counts: I64
    ) -> int:
        keys, s, n_kv_heads = self.keys(layer), self._rows, self._config.n_kv_heads
        signatures = np.empty(q.shape[:2], np.uint64)
        self._networks[layer.index].sign_rows(q, signatures)
        signed = signatures.reshape(len(q), n_kv_heads, -1)
        if isinstance(s, RowRerankedScratch):
            wanted = Wanted(k, self._rerank * k, SEED)
            queries = SignedQueries(q, signed)
            best_signed_rows(queries, keys, among, wanted, lists, counts, scratch=s)
        else:
            wanted = Wanted(k, k, SEED)
            nearest_rows(signed, keys.items, self._bits, among, wanted, lists, counts, scratch=s)
        readings = -(-len(q) // ROWS)
        return readings * (among.last - among.first) * n_kv_heads * self._bits // 8


class RowSketches(RowIndex, SketchIndex):
    """The index of `topk`, for many rows at a time.

    The frame of the keys is that of tokens before the chunk of the rows. So choices do not depend
    on how a prompt was cut into calls.
    """

    def prepare(self, n_ctx: int, k: int) -> None:
        CentredIndex.prepare(self, n_ctx, k)
        config, most = self._config, RERANKED * k
        self._rows = RowSketchScratch(config.n_heads, config.n_kv_heads, n_ctx, most, self._layout)

    def index(self, layer: LayerView, chunk: int, stop: int) -> None:
        n = averaged(chunk)
        if layer.config.window is None:
            self.update_with(layer, n, stop, stop)
        else:
            self.mark_skipped_with(layer, n, stop)

    def choose_rows(
        self, layer: LayerView, q: F32, among: Range, k: int, lists: U32, counts: I64
    ) -> int:
        wanted = Wanted(k, RERANKED * k, SEED)
        best_sketched_rows(q, self.keys(layer), among, wanted, lists, counts, scratch=self._rows)
        readings = -(-len(q) // ROWS)
        tokens = (among.last - among.first) * self._config.n_kv_heads
        return readings * tokens * (self._rotation.bits // 8 + 2)
