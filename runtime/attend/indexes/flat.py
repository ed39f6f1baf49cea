"""All stored keys, searched one by one: exact."""

from __future__ import annotations

from ....models.config import ModelConfig
from ....ops.arrays import F32, I32
from ....ops.select import ExactScratch, Lists, Range, Wanted, largest
from ...store import KVStore
from ..base import LayerView
from ..sparse import Chosen, SlotIndex


class FlatIndex(SlotIndex):
    """No index: the stored keys themselves are searched."""

    records = True

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self._config, self._layout = config, store.layout

    def prepare(self, n_ctx: int, k: int) -> None:
        config = self._config
        self._scratch = ExactScratch(config.n_heads, config.n_kv_heads, n_ctx, k, self._layout)

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        """Nothing: there is no column."""

    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        """Nothing: there is no column."""

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        lists = Lists(chosen.lists, chosen.counts)
        largest(
            q, layer.store.segments(layer.index), among, wanted, lists, taken=chosen.taken,
            scratch=self._scratch,
        )  # fmt: skip
        return self.bytes_read(layer.index, among, 0)

    def bytes_read(self, layer: int, among: Range, attended: int) -> int:
        n_tokens = (among.last - among.first) * self._config.n_kv_heads
        return n_tokens * (self._layout.k_row_bytes + self._layout.scale_row_bytes)
