"""Blocks of similar keys whose means stand for the tokens that were not chosen."""

from __future__ import annotations

from ....models.config import ModelConfig
from ....ops.arrays import F32
from ....ops.attention.layout import SEGMENT
from ....ops.device import Array
from ....ops.select import MeansScratch, Range, Wanted, add_means, block_means, means_item_bytes
from ...store import Column, KVStore
from ..base import LayerView
from ..sparse import SEED, Chosen, TokenIndex


class BlockMeans:
    """The mean key and value of each block of 32 similar keys, in column `means-SEED`."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self.column: Column = store.column(f"means-{SEED}", means_item_bytes(config.head_dim))

    def write(self, layer: LayerView, first: int, stop: int) -> None:
        """Write the means of segments first … stop - 1."""
        if first < stop:
            store, i = layer.store, layer.index
            keys = store.segments(i), store.layout, store.n_kv_heads
            block_means(*keys, self.column.segments(i), first, stop)


class MeansIndex(TokenIndex):
    """Another index, which chooses; what it leaves counts by the means of its blocks."""

    def __init__(self, chooses: TokenIndex, config: ModelConfig, store: KVStore) -> None:
        self._chooses, self._config, self.least = chooses, config, chooses.least
        self.records, self.notices = chooses.records, chooses.notices
        self._means = BlockMeans(config, store)
        self.column = self._means.column

    def prepare(self, n_ctx: int, k: int) -> None:
        self._chooses.prepare(n_ctx, k)
        config = self._config
        self._tail = MeansScratch(config.n_heads, config.n_kv_heads, config.head_dim, n_ctx)

    def update(self, layer: LayerView, start: int, stop: int) -> None:
        self._chooses.update(layer, start, stop)
        super().update(layer, start, stop)

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        self._means.write(layer, first // SEGMENT, stop // SEGMENT)

    def mark_skipped(self, layer: LayerView, stop: int) -> None:
        self._chooses.mark_skipped(layer, stop)
        super().mark_skipped(layer, stop)

    def sources(self, start: int) -> list[object] | None:
        if (start + 1) % SEGMENT == 0:  # the token fills a segment, whose means are then written
            return None
        means, sources = super().sources(start), self._chooses.sources(start)
        return None if means is None or sources is None else means + sources

    def index_one(self, layer: LayerView, start: int, stop: int) -> None:
        self._chooses.index_one(layer, start, stop)

    def mark_indexed(self, stop: int) -> None:
        self._chooses.mark_indexed(stop)
        super().mark_indexed(stop)

    def wanted(self, among: Range, k: int) -> Wanted:
        return self._chooses.wanted(among, k)

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        return self._chooses.choose(layer, q, among, wanted, chosen)

    def add_rest(
        self, layer: LayerView, q: Array, among: Range, chosen: Chosen, masses: F32, out: F32
    ) -> int:
        items = self._means.column.segments(layer.index)[: among.stop // SEGMENT]
        add_means(
            q, chosen.lists, chosen.counts, items, out,
            scoring=layer.softmax.scoring, masses=masses,
            scratch=self._tail,
        )  # fmt: skip
        return self._means_read(among, int(chosen.counts.sum()))

    def _means_read(self, among: Range, attended: int) -> int:
        return among.stop // SEGMENT * self._tail.means_bytes * self._tail.n_kv_heads + attended

    def bytes_read(self, layer: int, among: Range, attended: int) -> int:
        return self._chooses.bytes_read(layer, among, attended) + self._means_read(among, attended)
