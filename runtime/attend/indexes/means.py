"""Blocks of similar keys whose means stand for the tokens that were not chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ops.attention.arguments import Scoring
from ....ops.attention.layout import SEGMENT
from ..base import LayerView
from ..sparse import SEED, Chosen
from ..sparse.index import all_filled, places_of
from .blocks import BlockIndex

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.select import Range
    from ...store import KVStore
    from ..base import F32


class MeansIndex(BlockIndex):
    """A BlockIndex with the mean key and value of each block, in column `means-SEED`."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        from ....ops.select import means_item_bytes

        super().__init__(config, store)
        self.column = self._means = store.column(f"means-{SEED}", means_item_bytes(config.head_dim))

    def prepare(self, n_ctx: int, k: int) -> None:
        from ....ops.select import MeansScratch

        super().prepare(n_ctx, k)
        config = self._config
        self._tail = MeansScratch(config.n_heads, config.n_kv_heads, config.head_dim, n_ctx)

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        from ....ops.select import block_means

        store, i = layer.store, layer.index
        super().extend(layer, min(stop, int(self._blocks.filled[i])), stop)
        self._blocks.filled[i] = stop
        if first // SEGMENT < stop // SEGMENT:
            block_means(
                store.segments(i), store.layout, store.n_kv_heads, self._blocks.segments(i),
                self._means.segments(i), first // SEGMENT, stop // SEGMENT,
            )  # fmt: skip

    def leave_out(self, layer: LayerView, stop: int) -> None:
        super().leave_out(layer, stop)
        self._blocks.filled[layer.index] = stop

    def add_rest(
        self, layer: LayerView, q: F32, among: Range, chosen: Chosen, masses: F32, out: F32
    ) -> int:
        from ....ops.select import add_means

        config, tail = layer.config, self._tail
        n_full = among.stop // SEGMENT
        add_means(
            q, chosen.lists, chosen.counts, self._means.segments(layer.index)[:n_full], out,
            scoring=Scoring(config.attention_scale, config.attention_softcap), masses=masses,
            scratch=tail,
        )  # fmt: skip
        return self._means_read(among, int(chosen.counts.sum()))

    def _means_read(self, among: Range, attended: int) -> int:
        return among.stop // SEGMENT * self._tail.means_bytes * self._tail.n_kv_heads + attended

    def bytes_read(self, layer: int, among: Range, attended: int) -> int:
        return super().bytes_read(layer, among, attended) + self._means_read(among, attended)

    def sources(self, start: int) -> list[object] | None:
        means, blocks = super().sources(start), [self._blocks]
        return means + places_of(blocks) if means and all_filled(blocks, start) else None

    def indexed(self, stop: int) -> None:
        super().indexed(stop)
        self._blocks.filled[:] = stop
