"""A sparse method at work in one context."""

from __future__ import annotations

import time
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....jit.launch.clock import tell_time
from ....ops.attention.layout import SEGMENT
from ..base import BoundAttend, LayerView
from ..full import FullAttention
from ..reads import LayerReads
from .index import Chosen, TokenIndex
from .layers import ChoosingLayers
from .numbers import Numbers
from .probe import Probe
from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ....models.config import ModelConfig
    from ....ops.select import Range
    from ...methods import Progress
    from ...store import KVStore
    from ..base import F32
    from ..selections import SelectionWriter
    from .options import SparseOptions


class SparseAttention(BoundAttend):
    """A sparse method over one context.

    Where the index can, a token is recorded (`Device.record`): all that it does is launches. What
    it chooses from, and how many, are then `Numbers`, which `expect` sets for all layers.

    dense: layers that read every token, beside those with a sliding window.
    """

    chooses: ClassVar[bool] = True

    def __init__(
        self,
        method: SparseOptions,
        dense: frozenset[int],
        config: ModelConfig,
        store: KVStore,
        n_ctx: int,
        index: TokenIndex,
    ) -> None:
        self.method, self._config, self._full = method, config, FullAttention()
        self._store, self._index, self.notices = store, index, index.notices
        self._layers = layers = ChoosingLayers(method, dense, config, n_ctx)
        self.reads = [LayerReads(i) for i in range(config.n_layers)]
        self._chosen = self._room_for(n_ctx, layers.room)
        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = store.device.gathered_scratch(heads, kv_heads, store.layout, layers.room)
        index.prepare(n_ctx, layers.most)
        self._ahead = ReadAhead(layers.choosing)
        self._probe = Probe(config, store, n_ctx) if method.probe else None
        self.records = index.records and store.records and not method.probe
        self._numbers = Numbers(layers)
        self._lengths = np.zeros((config.n_layers, kv_heads), np.int64)
        self._times = np.zeros((config.n_layers, 3), np.int64)
        """Nanoseconds at which a layer of a recorded token began, had chosen and had read."""
        self._recorded = False
        self._sources: list[object] = []
        self._n_sources = 0

    def _room_for(self, n_ctx: int, room: int) -> Chosen:
        """Lists of up to `room` of at most n_ctx tokens."""
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        return Chosen.room_for(heads, kv_heads, room, self._index.weighs)

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        self._recorded = False
        if not self.records or n_tokens > 1 or prompt or self.writer is not None:
            return None
        sources = self._index.sources(start)
        if sources is None or self._ahead.due(self._store):
            return None
        self._recorded = True
        if len(sources) != len(self._sources) or not all(map(is_, sources, self._sources)):
            self._sources, self._n_sources = sources, self._n_sources + 1
        choosing = self._numbers.set(start, self._index)
        return choosing, self._n_sources, self._numbers.stored // SEGMENT

    def done(self, n_tokens: int) -> None:
        if self._recorded:
            self._index.indexed(self._numbers.stored)
            self._count_recorded()

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        if layer.index not in self._layers.indexed:
            if not self._recorded:
                self._index.leave_out(layer, start + n_tokens)
        elif self._recorded:
            self._index.index_one(layer, *self._numbers.new())
        else:
            self._index.cover(layer, start, start + n_tokens)

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        self._recorded = False
        for done, layer in enumerate(layers, 1):
            self.appended(layer, n_tokens, 0)
            if progress is not None:
                progress(done, len(layers))

    def rehearse(self, layers: list[LayerView]) -> None:
        self._ahead.rehearse(layers[0])

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full.attend_prompt(layer, q, start, out)

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        if self._recorded:
            self._attend_recorded(layer, q, start, out)
            return
        for row in range(len(q)):
            one = slice(row, row + 1)
            stored = start + row + 1
            self._attend(layer, q[one], self._among(layer, stored), stored, out[one])

    def _attend_recorded(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        """One token, by launches alone."""
        numbers = self._numbers.of(layer.index)
        if numbers is None:
            self._full(layer, q, start, out)
            return
        chosen = replace(self._chosen, counts=self._lengths[layer.index])
        began, chose, done = (int(self._times[layer.index].ctypes.data) + 8 * i for i in range(3))
        tell_time(began)
        self._index.choose(layer, q, numbers.among, numbers.wanted, chosen)
        tell_time(chose)
        self._read(layer, q, chosen, out)
        self._index.add_rest(layer, q, numbers.among, chosen, self._scratch.masses, out)
        tell_time(done)

    def _read(self, layer: LayerView, q: F32, chosen: Chosen, out: F32) -> None:
        layer.device.gathered_attention(
            q,
            chosen.lists,
            chosen.counts,
            layer.store.segments(layer.index),
            out,
            scale=layer.config.attention_scale,
            softcap=layer.config.attention_softcap,
            log_weights=chosen.log_weights,
            scratch=self._scratch,
        )

    def _attend(self, layer: LayerView, q: F32, among: Range | None, stored: int, out: F32) -> None:
        """One token, the last of `stored`, which chooses for itself."""
        reads, chosen = self.reads[layer.index], self._chosen
        if among is None:
            self._full(layer, q, stored - 1, out)
            reads.full_steps += 1
            return
        began = time.perf_counter()
        self._ahead.before(layer)
        wanted = self._index.wanted(among, self._layers.takes(layer.index, among.stop))
        index_bytes = self._index.choose(layer, q, among, wanted, chosen)
        if self.writer is not None:
            self._record(self.writer, layer.index, among.stop)
        self._ahead.chosen(layer, chosen.lists, chosen.counts)
        chose = time.perf_counter()
        self._read(layer, q, chosen, out)
        index_bytes += self._index.add_rest(layer, q, among, chosen, self._scratch.masses, out)
        self._count(layer, among, index_bytes, chose - began, time.perf_counter() - chose)
        if self._probe is not None and reads.steps % self.method.probe == 0:
            reads.probes += 1
            covered, entropy = self._probe.covered(layer, q, among.stop, chosen)
            reads.covered_mass += covered
            reads.entropy += entropy
            reads.output_error += self._probe.error(layer, q, stored - 1, out)

    def _among(self, layer: LayerView, stored: int) -> Range | None:
        """The tokens to choose from; None where everything is read."""
        return None if stored < self._index.least else self._layers.among(layer.index, stored)

    def _record(self, writer: SelectionWriter, layer: int, stored: int) -> None:
        """Record the chosen tokens, by their positions."""
        writer.add(layer, stored, self._chosen.lists, self._chosen.counts)

    def _count(
        self, layer: LayerView, among: Range, index_bytes: int, choosing: float, reading: float
    ) -> None:
        reads, layout = self.reads[layer.index], layer.store.layout
        attended = int(self._chosen.counts.sum())
        row_bytes = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
        reads.steps += 1
        reads.stored_tokens += among.stop * self._config.n_kv_heads
        reads.attended_tokens += attended
        reads.index_bytes += index_bytes
        reads.attention_bytes += attended * row_bytes
        reads.index_seconds += choosing
        reads.attention_seconds += reading

    def _count_recorded(self) -> None:
        """What the layers of a recorded token have read."""
        layout, stored = self._store.layout, self._config.n_kv_heads * self._numbers.stored
        row_bytes = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
        chose, attended = self._numbers.chose(), np.add.reduce(self._lengths, 1).tolist()
        seconds = ((self._times[:, 1:] - self._times[:, :-1]) * 1e-9).tolist()
        for reads in self.reads:
            i = reads.layer
            if i not in chose:
                reads.full_steps += 1
                continue
            reads.steps += 1
            reads.stored_tokens += stored
            reads.attended_tokens += attended[i]
            reads.index_bytes += self._index.bytes_read(i, chose[i], attended[i])
            reads.attention_bytes += attended[i] * row_bytes
            reads.index_seconds += seconds[i][0]
            reads.attention_seconds += seconds[i][1]
