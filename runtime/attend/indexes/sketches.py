"""Sketches of the stored keys: one bit per dimension (RaBitQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..base import LayerView
from ..sparse import SEED, Chosen, TokenIndex

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.select import Range
    from ...store import KVStore
    from ..base import F32, I32

RERANKED = 2
"""How many candidates per wanted token sketches find; these are then scored exactly."""


class SketchIndex(TokenIndex):
    """One bit per rotated dimension and a factor for every stored key.

    Columns `sketch-SEED` (bits / 8 bytes) and `sketch-SEED-factors` (f16). All layers share one
    rotation: the estimates need a random one, not one per layer.
    """

    over_slots: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        from ....ops.select import Rotation

        self._config, self._layout = config, store.layout
        self._rotation = Rotation.random(config.head_dim, SEED)
        self._bits = store.column(f"sketch-{SEED}", self._rotation.bits // 8)
        self.column = self._bits
        self._factors = store.column(f"sketch-{SEED}-factors", 2)

    def prepare(self, n_ctx: int, k: int) -> None:
        from ....ops.select import SketchScratch

        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._scratch = SketchScratch(heads, kv_heads, n_ctx, RERANKED * k, self._layout)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        from ....ops.select import sketch_keys

        store, i = layer.store, layer.index
        first = min(first, int(self._factors.filled[i]))
        sketch_keys(
            self._rotation, store.segments(i), store.layout, store.n_kv_heads,
            self._bits.segments(i), self._factors.segments(i), first, last,
        )  # fmt: skip
        self._factors.filled[i] = last

    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        from ....ops.select import sketch_slots

        store, i = layer.store, layer.index
        sketch_slots(
            self._rotation, store.segments(i), store.layout, self._bits.segments(i),
            self._factors.segments(i), slots, n_tokens,
        )  # fmt: skip

    def leave_out(self, layer: LayerView, stop: int) -> None:
        super().leave_out(layer, stop)
        self._factors.filled[layer.index] = stop

    def choose(self, layer: LayerView, q: F32, among: Range, k: int, chosen: Chosen) -> int:
        from ....ops.select import best_sketched

        i = layer.index
        best_sketched(
            q, layer.store.segments(i), self._bits.segments(i), self._factors.segments(i),
            self._rotation, among, k, RERANKED * k, chosen.lists, chosen.counts, seed=SEED,
            taken=chosen.taken, scratch=self._scratch,
        )  # fmt: skip
        passes = self._scratch.group // self._scratch.together
        tokens = (among.last - among.first) * self._config.n_kv_heads
        return passes * tokens * (self._rotation.bits // 8 + 2)
