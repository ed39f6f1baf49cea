"""Sketches of the stored keys: one bit per dimension (RaBitQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import LayerView
from ..sparse import SEED, CentredIndex, Chosen

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.select import Range
    from ...store import Column, KVStore
    from ..base import F32

RERANKED = 2
"""How many candidates per wanted token sketches find; these are then scored exactly."""


class SketchIndex(CentredIndex):
    """One bit per rotated dimension and a factor for every stored key less the centre c.

    q · (k - c) orders tokens as q · k does, so queries need no centre. Columns `sketch-SEED-cN`
    (bits / 8 bytes) and `sketch-SEED-factors-cN` (f16). All layers share one rotation: the
    estimates need a random one, not one per layer.
    """

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        from ....ops.select import Rotation

        self._config, self._layout = config, store.layout
        self._rotation = Rotation.random(config.head_dim, SEED)
        name, n_bytes = f"sketch-{SEED}", self._rotation.bits // 8
        super().__init__(store, {name: n_bytes, f"{name}-factors": 2})

    def prepare(self, n_ctx: int, k: int) -> None:
        from ....ops.select import SketchScratch

        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._scratch = SketchScratch(heads, kv_heads, n_ctx, RERANKED * k, self._layout)

    def add(
        self, layer: LayerView, centre: F32, columns: list[Column], first: int, last: int
    ) -> None:
        from ....ops.select import sketch_keys

        i, store = layer.index, layer.store
        bits, factors = (column.segments(i) for column in columns)
        sketch_keys(
            self._rotation, centre, store.segments(i), store.layout, bits, factors, first, last
        )

    def choose(self, layer: LayerView, q: F32, among: Range, k: int, chosen: Chosen) -> int:
        from ....ops.select import best_sketched

        i = layer.index
        bits, factors = (column.segments(i) for column in self.columns(layer))
        best_sketched(
            q, layer.store.segments(i), bits, factors, self._rotation, among, k, RERANKED * k,
            chosen.lists, chosen.counts, seed=SEED, scratch=self._scratch,
        )  # fmt: skip
        passes = self._scratch.group // self._scratch.together
        tokens = (among.last - among.first) * self._config.n_kv_heads
        return passes * tokens * (self._rotation.bits // 8 + 2)
