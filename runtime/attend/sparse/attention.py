"""A sparse method at work in one context."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....models.config import ModelConfig
from ....ops.arrays import U32
from ....ops.attention.layout import SEGMENT
from ....ops.device import Array, KVDevice
from ....ops.select import Range
from ...methods import Progress
from ...store import KVStore
from ..base import BoundAttend, LayerView
from ..full import FullAttention
from ..reads import LayerReads
from .index import Chosen, TokenIndex
from .layers import ChoosingLayers, RecordedChoices
from .probe import Probe
from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from .method import Sparse


class SparseAttention(BoundAttend):
    """A sparse method over one context.

    Where the index can, a token is recorded (`Device.record`), and so are those of a draft: it is
    launches alone, and its choices are numbers that `expect` sets for all layers
    (`RecordedChoices`).

    dense: layers that read every token, beside those with a sliding window.
    """

    chooses: ClassVar[bool] = True

    def __init__(
        self,
        method: Sparse,
        dense: frozenset[int],
        config: ModelConfig,
        store: KVStore,
        n_ctx: int,
        index: TokenIndex,
    ) -> None:
        self.method, self._config, self._full = method, config, FullAttention()
        self._store, self._index, self.notices = store, index, index.notices
        self._device = device = store.device
        self._layers = layers = ChoosingLayers(method, dense, config, n_ctx)
        self._n_layers = n_layers = len(config.attention_layers)
        self.reads = [LayerReads(i) for i in range(n_layers)]
        self._chosen = self._room_for(n_ctx, layers.room)
        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = device.gathered_scratch(heads, kv_heads, store.layout, layers.room)
        index.prepare(n_ctx, layers.most)
        self._ahead = ReadAhead(layers.choosing)
        self._probe = Probe(config, store, n_ctx) if method.probe else None
        self.records = index.records and store.records and not method.probe
        self._tokens = [RecordedChoices(layers, config, device)]
        """Those of a pass, the first of which is at position `_start`, and of longer passes."""
        self._start = 0
        self._recorded, self._prompt = False, False
        self._sources: list[object] = []
        self._n_sources = 0
        self._on_gpu = isinstance(device, KVDevice)
        self._uncounted: list[tuple[int, Range, int]] = []
        """Layer, range and bytes of the index of each choice whose lists are not yet counted. To
        read a GPU's memory waits for all that it does, so it is read once for each pass."""
        self._pass_counts: Array = None
        """The lengths of their lists."""

    def _room_for(self, n_ctx: int, room: int) -> Chosen:
        """Lists of up to `room` of at most n_ctx tokens."""
        return Chosen.room_for(self._config, self._device, room, weighed=self._index.weighs)

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        self._recorded, self._prompt, self._uncounted = False, prompt, []
        self._start = start
        # Tokens of a prompt are rows of several where passes have a least number of rows; there,
        # generated ones are read one by one. An index changes where a segment becomes full.
        single = not prompt if self._device.least_rows > 1 else n_tokens == 1
        fills = n_tokens > 1 and start // SEGMENT != (start + n_tokens) // SEGMENT
        records = self.records and single and not fills and self.observer is None
        sources = self._index.sources(start) if records else None
        if sources is None or self._ahead.is_due(self._store):
            if self._on_gpu and not prompt:
                shape = n_tokens * self._n_layers, self._config.n_kv_heads
                self._pass_counts = self._device.memory(shape, self._device.list_types[1])
            return None
        while len(self._tokens) < n_tokens:
            self._tokens.append(RecordedChoices(self._layers, self._config, self._device))
        index, states = None if prompt else self._index, set()
        for position, choices in enumerate(self._tokens[:n_tokens], start):
            states.add(choices.set(position, index))
        if len(states) > 1:
            return None
        self._recorded = True
        if len(sources) != len(self._sources) or not all(map(is_, sources, self._sources)):
            self._sources, self._n_sources = sources, self._n_sources + 1
        # On a GPU all lengths are in its memory: one recording serves contexts of any length.
        n_full = 0 if self._on_gpu else (start + 1) // SEGMENT
        return prompt, *states, self._n_sources, n_full

    def _choices_at(self, start: int) -> RecordedChoices:
        """Those of the token at a position."""
        return self._tokens[start - self._start]

    def end(self, n_tokens: int) -> None:
        if not self._recorded:
            if self._uncounted:
                counts = self._device.get(self._pass_counts[: len(self._uncounted)])
                attended = np.add.reduce(counts, 1).tolist()
                self._count([(*parts, n) for parts, n in zip(self._uncounted, attended)])
            return
        self._index.mark_indexed(self._start + n_tokens)
        for choices in () if self._prompt else self._tokens[:n_tokens]:
            self._count_recorded(choices)

    def _count_recorded(self, choices: RecordedChoices) -> None:
        ranges, bytes_read, times = choices.ranges(), self._index.bytes_read, choices.times
        attended = np.add.reduce(self._device.get(choices.counts), 1).tolist()
        self._count([(i, r, bytes_read(i, r, attended[i]), attended[i]) for i, r in ranges.items()])
        seconds = ((times[:, 1:] - times[:, :-1]) * 1e-9).tolist()
        for reads in self.reads:
            if reads.layer not in ranges:
                reads.full_steps += 1
                continue
            choosing, reading = seconds[reads.layer]
            reads.index_seconds += choosing
            reads.attention_seconds += reading

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        if layer.index not in self._layers.indexed:
            if not self._recorded:
                self._index.mark_skipped(layer, start + n_tokens)
        elif not self._recorded:
            self._index.update(layer, start, start + n_tokens)
        elif self._choices_at(start).of_layer(layer.number) is None:
            # Else `index_and_choose` does it.
            self._index.index_one(layer, *self._choices_at(start).span())

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        self._recorded = False
        for done, layer in enumerate(layers, 1):
            if layer.config.reads is None:
                self.appended(layer, n_tokens, 0)
            if progress is not None:
                progress(done, len(layers))

    def rehearse(self, layers: list[LayerView]) -> None:
        self._ahead.rehearse(layers[0])

    def attend_prompt(self, layer: LayerView, q: Array, start: int, out: Array) -> None:
        self._full.attend_prompt(layer, q, start, out)

    def __call__(self, layer: LayerView, q: Array, start: int, out: Array) -> None:
        if self._recorded:
            self._attend_recorded(layer, q, start, out)
            return
        for i in range(len(q)):
            row, stored = slice(i, i + 1), start + i + 1
            self._attend(layer, q[row], self._among(layer, stored), stored, out[row])

    def _attend_recorded(self, layer: LayerView, q: Array, start: int, out: Array) -> None:
        """One token, by launches alone."""
        choices, number = self._choices_at(start), layer.number
        choice = choices.of_layer(number)
        if choice is None:
            self._full(layer, q, start, out)
            return
        chosen, device = replace(self._chosen, counts=choices.counts[number]), self._device
        times = choices.times[number]
        device.tell_time(times, 0)
        if layer.config.reads is None:
            self._index.index_and_choose(layer, choices.span(), q, choice, chosen)
        else:
            self._index.choose(layer, q, *choice, chosen)
        device.tell_time(times, 1)
        self._read(layer, q, chosen, out)
        self._index.add_rest(layer, q, choice.among, chosen, self._scratch.masses, out)
        device.tell_time(times, 2)

    def _read(self, layer: LayerView, q: Array, chosen: Chosen, out: Array) -> None:
        weights = {"log_weights": chosen.log_weights} if self._index.weighs else {}
        layer.device.gathered_attention(
            q,
            chosen.lists,
            chosen.counts,
            layer.store.segments(layer.index),
            out,
            softmax=layer.softmax,
            scratch=self._scratch,
            **weights,
        )

    def _attend(
        self, layer: LayerView, q: Array, among: Range | None, stored: int, out: Array
    ) -> None:
        """One token, the last of `stored`, which chooses for itself."""
        reads, chosen = self.reads[layer.number], self._chosen
        if among is None:
            self._full(layer, q, stored - 1, out)
            reads.full_steps += 1
            return
        if self._on_gpu:
            chosen = replace(chosen, counts=self._pass_counts[len(self._uncounted)])
        began = time.perf_counter()
        self._ahead.request_next(layer)
        wanted = self._index.wanted(among, self._layers.takes(layer.number, among.stop))
        index_bytes = self._index.choose(layer, q, among, wanted, chosen)
        if self.observer is not None:
            lists, counts = map(self._device.get, (chosen.lists, chosen.counts))
            lists, stored_tokens = self._positions(layer, lists.view(np.uint32), among.stop)
            self.observer.add(layer.number, stored_tokens, lists, counts.astype(np.int64))
        self._ahead.chosen(layer, chosen.lists, chosen.counts)
        chose = time.perf_counter()
        self._read(layer, q, chosen, out)
        index_bytes += self._index.add_rest(layer, q, among, chosen, self._scratch.masses, out)
        if self._on_gpu:
            self._uncounted.append((layer.number, among, index_bytes))
            return
        self._count([(layer.number, among, index_bytes, int(chosen.counts.sum()))])
        reads.index_seconds += chose - began
        reads.attention_seconds += time.perf_counter() - chose
        if self._probe is not None and reads.steps % self.method.probe == 0:
            self._probe.measure(reads, layer, q, stored - 1, chosen.of_heads(q.shape[1]), out)

    def _among(self, layer: LayerView, stored: int) -> Range | None:
        """The tokens to choose from; None where everything is read."""
        return None if stored < self._index.least else self._layers.among(layer.number, stored)

    def _positions(self, layer: LayerView, lists: U32, stored: int) -> tuple[U32, int]:
        """Positions of the tokens of lists, and how many tokens there are up to the last."""
        return lists, stored

    def _count(self, choices: Sequence[tuple[int, Range, int, int]]) -> None:
        """Add what choices have read: layer, range, bytes of the index, tokens of all KV heads."""
        layout, kv_heads = self._store.layout, self._config.n_kv_heads
        row_bytes = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
        for layer, among, index_bytes, attended in choices:
            reads = self.reads[layer]
            reads.steps += 1
            reads.stored_tokens += among.stop * kv_heads
            reads.attended_tokens += attended
            reads.index_bytes += index_bytes
            reads.attention_bytes += attended * row_bytes
