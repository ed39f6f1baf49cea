"""A sparse method in a context whose keys and values are in the memory of a GPU.

All that a generated token does is launches, so that it can be recorded: what it chooses from and
how many are numbers in that memory, which `expect` writes for all layers at once. What is not
recorded works through the same launches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....ops.select import Range
from ..base import BoundAttend, LayerView
from ..full import FullAttention
from ..reads import LayerReads
from .index import KeyIndex
from .layers import ChoosingLayers

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.device import Array
    from ...methods import Progress
    from ...store import KVStore
    from .options import SparseOptions


Ranges = dict[int, tuple[Range, int]]
"""By layer, the tokens to choose from, and how many each query head takes."""


class ResidentIndex(KeyIndex):
    """An index in the memory of the store's device, which chooses there."""

    item_bytes: int
    """Bytes that a choice reads of each token."""

    @property
    @abstractmethod
    def state(self) -> Hashable:
        """What launches that were recorded depend on, beside the tokens."""

    @abstractmethod
    def ready(self, layers: set[int], start: int) -> bool:
        """Whether these layers have indexed all tokens before `start`, and that one needs no more
        than `index_one` or `choose`."""

    @abstractmethod
    def indexed(self, stop: int) -> None:
        """All layers that are indexed have the tokens up to `stop - 1`, by `index_one` or `choose`.
        Others count as indexed: see `Column`."""

    @abstractmethod
    def index_one(self, layer: LayerView, start: int, stop: int) -> None:
        """Index the key that is stored at `start`, by launches alone."""

    def numbers(self, among: Range, k: int) -> tuple[int, ...]:
        """What `choose` finds in memory: the range, how many each query head takes, and more."""
        return *among, k

    @abstractmethod
    def choose(self, layer: LayerView, q: Array, start: int, among: Array, lists: object) -> None:
        """Lists for q (1, H, E) of the token at `start`, by launches alone, which index it, too.

        among: int32, what `numbers` gave.
        """


class ResidentAttention(BoundAttend):
    """A sparse method over one context; as `SparseAttention`, with the same lists."""

    records = True
    chooses: ClassVar[bool] = True

    def __init__(
        self,
        method: SparseOptions,
        dense: frozenset[int],
        config: ModelConfig,
        store: KVStore,
        n_ctx: int,
        index: ResidentIndex,
    ) -> None:
        self.method, self._config, self._full = method, config, FullAttention()
        self._store, self._index, self.notices = store, index, index.notices
        self._layers = layers = ChoosingLayers(method, dense, config, n_ctx)
        self.reads = [LayerReads(i) for i in range(config.n_layers)]
        self._device = device = store.device
        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = device.gathered_scratch(heads, kv_heads, store.layout, layers.room)
        self._tokens = device.memory((kv_heads, layers.room), np.int32)
        width = len(index.numbers(Range(0, 0, 0), 0))
        self._among = device.zeros((1, config.n_layers, width), np.int32)
        self._counts = device.zeros((1, config.n_layers, kv_heads), np.int32)
        index.prepare(n_ctx, layers.most)
        self._start, self._rows, self._recorded = 0, _Rows(self._among, self._counts, []), False

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        self._start = start
        ranges = [] if prompt else [self._ranges(start + row + 1) for row in range(n_tokens)]
        among, counts = self._among, self._counts
        if any(ranges):
            numbers = np.zeros((len(ranges), *among.shape[1:]), np.int32)
            for row, found in zip(numbers, ranges):
                for layer, (one, k) in found.items():
                    row[layer] = self._index.numbers(one, k)
            if n_tokens > 1:
                among = self._device.zeros(numbers.shape, np.int32)
                counts = self._device.zeros((n_tokens, *counts.shape[1:]), np.int32)
            self._device.put(numbers, among)
        self._rows = _Rows(among, counts, ranges)
        ready = self._index.ready(self._layers.indexed, start)
        self._recorded = n_tokens == 1 and ready and self.writer is None
        choosing = tuple(ranges[0]) if ranges else ()
        return (prompt, choosing, self._index.state) if self._recorded else None

    def appended(self, layer: LayerView, start: int, n_tokens: int) -> None:
        if not self._recorded:
            if layer.index in self._layers.indexed:
                self._index.cover(layer, start, start + n_tokens)
            else:
                self._index.leave_out(layer, start + n_tokens)
        elif layer.index in self._layers.indexed and not self._rows.choosing(layer.index):
            self._index.index_one(layer, start, start + 1)

    def done(self, n_tokens: int) -> None:
        if self._recorded:
            self._index.indexed(self._start + n_tokens)
        self._count()

    def build(
        self, layers: list[LayerView], n_tokens: int, progress: Progress | None = None
    ) -> None:
        self._recorded = False
        for done, layer in enumerate(layers, 1):
            self.appended(layer, n_tokens, 0)
            if progress is not None:
                progress(done, len(layers))

    def attend_prompt(self, layer: LayerView, q: Array, start: int, out: Array) -> None:
        self._full.attend_prompt(layer, q, start, out)

    def __call__(self, layer: LayerView, q: Array, start: int, out: Array) -> None:
        if not self._rows.choosing(layer.index):
            self._full(layer, q, start, out)
            return
        first = self._rows.n - len(q)
        for i in range(len(q)):
            one = slice(i, i + 1)
            # `start` + 0 would be a plain number.
            place = start + i if i else start
            if layer.index in self._rows.ranges[first + i]:
                self._attend(layer, q[one], place, first + i, out[one])
            else:
                self._full(layer, q[one], place, out[one])

    def _attend(self, layer: LayerView, q: Array, start: int, row: int, out: Array) -> None:
        """One token that chooses, number `row` of the pass."""
        device, i = self._device, layer.index
        counts = self._rows.counts[row][i]
        lists = device.select.lists(self._tokens, counts)
        self._index.choose(layer, q, start, self._rows.among[row][i], lists)
        if self.writer is not None:
            found = device.get(self._tokens).view(np.uint32), device.get(counts).astype(np.int64)
            self.writer.add(i, start + 1, *found)
        device.gathered_attention(
            q,
            self._tokens,
            counts,
            layer.store.segments(i),
            out,
            scale=layer.config.attention_scale,
            softcap=layer.config.attention_softcap,
            scratch=self._scratch,
        )

    def _ranges(self, stored: int) -> Ranges:
        """The layers that choose for the last of `stored` tokens, from what and how many."""
        found: Ranges = {}
        if stored < self._index.least:
            return found
        for layer in self._layers.choosing:
            among = self._layers.among(layer, stored)
            if among is not None:
                found[layer] = among, self._layers.takes(layer, stored)
        return found

    def _count(self) -> None:
        """What the tokens of a pass have read, which the GPU knows."""
        rows, layout = self._rows, self._store.layout
        if not rows.ranges:
            return
        lengths = self._device.get(rows.counts).sum(-1) if any(rows.ranges) else None
        row_bytes = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
        for row, found in enumerate(rows.ranges):
            for reads in self.reads:
                if reads.layer not in found or lengths is None:
                    reads.full_steps += 1
                    continue
                among, _ = found[reads.layer]
                attended = int(lengths[row, reads.layer])
                reads.steps += 1
                reads.stored_tokens += among.stop * self._config.n_kv_heads
                reads.attended_tokens += attended
                tokens = (among.last - among.first) * self._config.n_kv_heads
                reads.index_bytes += tokens * self._index.item_bytes
                reads.attention_bytes += attended * row_bytes
        self._rows = _Rows(self._among, self._counts, [])


class _Rows:
    """The tokens of a pass: what each chooses from, by layer, in the host's memory and the GPU's.

    among int32 (T, layers, …), counts int32 (T, layers, J): see `ResidentIndex.choose`.
    """

    def __init__(self, among: Array, counts: Array, ranges: list[Ranges]) -> None:
        self.among, self.counts, self.ranges, self.n = among, counts, ranges, len(ranges)

    def choosing(self, layer: int) -> bool:
        """Whether any of them chooses in a layer."""
        return any(layer in found for found in self.ranges)
