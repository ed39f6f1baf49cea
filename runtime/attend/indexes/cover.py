"""Of what another index chooses, the fewest tokens that hold a share of the softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base import LayerView
from ..sparse import SEED, Chosen, Refined, TokenIndex
from .flat import FlatIndex

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.select import Range, Wanted
    from ...store import KVStore
    from ..base import F32


class Covering(Refined):
    """Another index's lists, shortened until they hold `share` of each query head's softmax.

    The whole softmax is known where the index computes all scores (`flat`). Else what the lists
    leave out is estimated from a stratified sample of 512 tokens, see `ops.select.cover`.
    """

    def __init__(
        self, index: TokenIndex, share: float, fixed: int, config: ModelConfig, store: KVStore
    ) -> None:
        """fixed: how many tokens are always read."""
        super().__init__(index)
        self._share, self._fixed = share, fixed
        self._config, self._layout = config, store.layout
        knows = isinstance(index, FlatIndex)
        self._totals = np.zeros((config.n_heads if knows else 0, 2), np.float32)
        if isinstance(index, FlatIndex):
            index.totals = self._totals

    def prepare(self, n_ctx: int, k: int) -> None:
        from ....ops.select import CoverScratch

        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        room = min(n_ctx, self._fixed + k * heads // kv_heads)
        self.index.prepare(n_ctx, k)
        self._scratch = CoverScratch(heads, kv_heads, n_ctx, room, self._layout)

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        from ....ops.attention.arguments import Scoring
        from ....ops.select import SAMPLE, cover

        n_bytes = self.index.choose(layer, q, among, wanted, chosen)
        config, layout = layer.config, self._layout
        looked_at = int(chosen.counts.sum())
        if not len(self._totals):
            looked_at += min(SAMPLE, among.last - among.first) * len(chosen.counts)
        cover(
            q, layer.store.segments(layer.index), among, wanted.k, self._share, chosen.lists,
            chosen.counts, scoring=Scoring(config.attention_scale, config.attention_softcap),
            seed=SEED, scratch=self._scratch, totals=self._totals,
        )  # fmt: skip
        return n_bytes + looked_at * (layout.k_row_bytes + layout.scale_row_bytes)
