"""Sparse prefill at work in one context."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...models.config import ModelConfig
from ...ops.arrays import F32, I64, U32
from ...ops.attention.arguments import Dense
from ...ops.attention.layout import SEGMENT
from ...ops.attention.prefill.listed import ListedScratch, ReadRows, listed_attention
from ...ops.select import Range
from ..attend import BoundAttend, LayerView
from ..attend.reads import LayerReads, sums_of
from ..attend.sparse.probe import Probe
from ..attend.sparse.read_ahead import ReadAhead
from ..methods import Progress
from ..store import KVStore
from .base import CHUNK
from .indexes import RowIndex
from .prompts import SINKS, PromptAttend
from .tail import RowTail

if TYPE_CHECKING:
    from .sparse import SparsePrefill

WINDOW = 128
"""Tokens before the open segment that every row reads."""
ROWS = 128
"""Rows whose lists are made and read at a time: all of a chunk's would take 4 times the memory."""


class CandidateRange(NamedTuple):
    """Tokens first … stop - 1, of which a row chooses; it reads all others."""

    first: int
    stop: int


class SparsePrompts(PromptAttend):
    """Reads prompts as `SparsePrefill` says, and generated tokens by `inner`."""

    def __init__(
        self,
        inner: BoundAttend,
        prefill: SparsePrefill,
        config: ModelConfig,
        store: KVStore,
        n_ctx: int,
        index: RowIndex,
    ) -> None:
        super().__init__(inner, len(config.attention_layers))
        self._prefill, self._config, self._index = prefill, config, index
        self.notices = tuple(dict.fromkeys((*inner.notices, *index.notices)))
        index.prepare(n_ctx, prefill.k)
        self._scratch = ListedScratch(config.n_heads, config.n_kv_heads, store.layout)
        room = min(prefill.k * (config.n_heads // config.n_kv_heads), n_ctx)
        self._lists = np.zeros((ROWS, config.n_kv_heads, room), np.uint32)
        self._counts = np.zeros((ROWS, config.n_kv_heads), np.int64)
        self._tail = RowTail(config, store) if prefill.tail == "means" else None
        self._softmaxes = np.zeros((ROWS, config.n_heads, 2), np.float32)
        self._ahead = ReadAhead([])
        self._probe = Probe(config, store, n_ctx) if prefill.probe else None
        self._store = store
        self._measured = [LayerReads(reads.layer) for reads in self.prompt_reads]

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        self._measured = [LayerReads(reads.layer) for reads in self.prompt_reads]
        return super().expect(start, n_tokens, prompt)

    def end(self, n_tokens: int) -> None:
        """Count the measurements of a pass that was not stopped."""
        super().end(n_tokens)
        for reads, measured in zip(self.prompt_reads, self._measured):
            reads.add_probes(measured)
        self._store.add_probes(sums_of(self._measured))

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        super().build(layers, n_tokens, progress)
        chunk = n_tokens // CHUNK * CHUNK
        if all(self.candidates(layer, chunk) is None for layer in layers):
            return  # the next rows read all
        for layer in layers:
            self._extend(layer, chunk, n_tokens)

    def rehearse(self, layers: list[LayerView]) -> None:
        super().rehearse(layers)
        self._ahead.rehearse(layers[0])
        config = self._config
        q = np.zeros((1, config.n_heads, config.head_dim), np.float32)
        for layer in layers:
            if layer.config.window is None:
                self.choose(layer, q, CandidateRange(0, SEGMENT), 1)  # few of many

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        """Rows of one chunk. The tokens that they read depend on their positions alone."""
        start = int(start)
        chunk, candidates = start // CHUNK * CHUNK, self.candidates(layer, start)
        if layer.config.window is not None:  # it has no items, and holds up no other layer's
            self._extend(layer, chunk, start + len(q))
        if candidates is None:
            self._inner.attend_prompt(layer, q, start, out)
            self.prompt_reads[layer.number].full_steps += len(q)
            return
        self._extend(layer, chunk, start + len(q))
        for first in range(0, len(q), ROWS):
            rows = slice(first, first + ROWS)
            self._attend(layer, q[rows], start + first, candidates, out[rows])

    def candidates(self, layer: LayerView, position: int) -> CandidateRange | None:
        """The tokens of which the row at a position chooses; None where it reads all."""
        chunk = position // CHUNK * CHUNK
        candidates = CandidateRange(SINKS, chunk // SEGMENT * SEGMENT - WINDOW)
        few = candidates.stop - candidates.first <= self._prefill.k
        from_ = max(self._prefill.from_, self._store.n_apart or 0)
        if layer.config.window is not None or chunk < from_ or few:
            return None
        return candidates

    def _extend(self, layer: LayerView, chunk: int, stop: int) -> None:
        """Index the tokens below `stop`, before rows of the chunk that begins at `chunk`."""
        self._index.index(layer, chunk, stop)
        if self._tail is not None:
            self._tail.index(layer, stop)

    def choose(
        self, layer: LayerView, q: F32, candidates: CandidateRange, k: int
    ) -> tuple[U32, I64, int]:
        """k tokens for each head of at most `ROWS` rows q (T, H, E), k no more than the method's:
        lists (T, J, room), of which the first counts (T, J) count, until the next call; and the
        bytes of the index that were read."""
        (first, stop), lists, counts = candidates, self._lists[: len(q)], self._counts[: len(q)]
        n = self._index.choose_rows(layer, q, Range(first, stop, stop), k, lists, counts)
        return lists, counts, n

    def _attend(
        self, layer: LayerView, q: F32, start: int, candidates: CandidateRange, out: F32
    ) -> None:
        """Attend with at most `ROWS` rows, from position `start` on."""
        softmaxes = self._softmaxes[: len(q)]
        began = time.perf_counter()
        lists, counts, index_bytes = self.choose(layer, q, candidates, self._prefill.k)
        self._ahead.rows(layer, lists, counts)
        read, chose = ReadRows(lists, counts, Dense(*candidates, start)), time.perf_counter()
        listed_attention(
            q,
            read,
            layer.store.segments(layer.index),
            out,
            softmax=layer.softmax,
            softmaxes=softmaxes,
            scratch=self._scratch,
        )
        if self._tail is not None:
            index_bytes += self._tail.add(layer, q, read, softmaxes, out)
        reads = self.prompt_reads[layer.number]
        reads.index_bytes += index_bytes
        reads.index_seconds += chose - began
        reads.attention_seconds += time.perf_counter() - chose
        self._count(layer, start, candidates, counts)
        if self._probe is not None:
            for row in range(-start % self._prefill.probe, len(q), self._prefill.probe):
                self._measure(layer, q[row : row + 1], start + row, row, candidates, out)

    def _count(self, layer: LayerView, start: int, candidates: CandidateRange, counts: I64) -> None:
        reads, layout, n = self.prompt_reads[layer.number], layer.store.layout, len(counts)
        row_bytes = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
        stored = n * start + n * (n + 1) // 2
        all_read = stored - n * (candidates.stop - candidates.first)
        reads.steps += n
        reads.stored_tokens += stored * self._config.n_kv_heads
        reads.attended_tokens += int(counts.sum()) + all_read * self._config.n_kv_heads
        reads.attention_bytes += int(counts.sum()) * row_bytes

    def _measure(
        self,
        layer: LayerView,
        q: F32,
        position: int,
        row: int,
        candidates: CandidateRange,
        out: F32,
    ) -> None:
        """Compare a row's output with exact attention."""
        assert self._probe is not None
        first, stop = candidates
        tokens = [
            np.r_[:first, chosen[:n], stop : position + 1].astype(np.uint32)
            for chosen, n in zip(self._lists[row], self._counts[row])
            for _ in range(q.shape[1] // len(self._counts[row]))
        ]
        reads = self._measured[layer.number]
        self._probe.measure(reads, layer, q, position, tokens, out[row : row + 1])
