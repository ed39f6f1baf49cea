"""A sparse method at work in one context."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from ..base import BoundAttend, LayerView
from ..full import FullAttention
from ..reads import LayerReads
from .index import Chosen, TokenIndex
from .layers import ChoosingLayers
from .probe import Probe
from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.select import Range
    from ...methods import Progress
    from ...store import KVStore
    from ..base import F32
    from ..selections import SelectionWriter
    from .method import Sparse


class SparseAttention(BoundAttend):
    """A sparse method over one context.

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
        self._index, self.notices = index, index.notices
        self._layers = layers = ChoosingLayers(method, dense, config, n_ctx)
        self.reads = [LayerReads(i) for i in range(config.n_layers)]
        self._chosen = self._room_for(n_ctx, layers.room)
        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = store.device.gathered_scratch(heads, kv_heads, store.layout, layers.room)
        index.prepare(n_ctx, layers.most)
        self._ahead = ReadAhead(layers.choosing)
        self._probe = Probe(config, store, n_ctx) if method.probe else None

    def _room_for(self, n_ctx: int, room: int) -> Chosen:
        """Lists of up to `room` of at most n_ctx tokens."""
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        return Chosen.room_for(heads, kv_heads, room, self._index.weighs)

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        if layer.index in self._layers.indexed:
            self._index.cover(layer, start, start + n_tokens)
        else:
            self._index.leave_out(layer, start + n_tokens)

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        for done, layer in enumerate(layers, 1):
            self.appended(layer, n_tokens, 0)
            if progress is not None:
                progress(done, len(layers))

    def rehearse(self, layers: list[LayerView]) -> None:
        self._ahead.rehearse(layers[0])

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full.attend_prompt(layer, q, start, out)

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        for row in range(len(q)):
            one = slice(row, row + 1)
            stored = start + row + 1
            self._attend(layer, q[one], self._among(layer, stored), stored, out[one])

    def _attend(self, layer: LayerView, q: F32, among: Range | None, stored: int, out: F32) -> None:
        """One token, the last of `stored`, which chooses for itself."""
        reads, chosen = self.reads[layer.index], self._chosen
        if among is None:
            self._full(layer, q, stored - 1, out)
            reads.full_steps += 1
            return
        began = time.perf_counter()
        self._ahead.before(layer)
        k = self._layers.takes(layer.index, among.stop)
        index_bytes = self._index.choose(layer, q, among, k, chosen)
        if self.writer is not None:
            self._record(self.writer, layer.index, among.stop)
        self._ahead.chosen(layer, chosen.lists, chosen.counts)
        chose = time.perf_counter()
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
