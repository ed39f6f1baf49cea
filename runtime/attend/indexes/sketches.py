"""Sketches of the stored keys: one bit per dimension (RaBitQ)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from ..base import LayerView
from ..sparse import SEED, CentredIndex, Chosen, SlotIndex, TokenIndex
from ..sparse.centre import averaged

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.device import Array
    from ....ops.select import Range, Rotation, SketchedKeys, Wanted
    from ...store import Column, KVStore
    from ..base import F32, I32

RERANKED = 2
"""How many candidates per wanted token sketches find; these are then scored exactly."""
NAME = f"sketch-{SEED}"


class _Sketches(TokenIndex):
    """One bit per rotated dimension and a factor for every stored key.

    In two columns, of bits / 8 and of 2 bytes (f16). All layers share one rotation: the estimates
    need a random one, not one per layer.
    """

    records = True

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self._config, self._layout, self._device = config, store.layout, store.device
        self._rotation: Rotation = self._device.select.Rotation.random(config.head_dim, SEED)
        self._items = {NAME: self._rotation.bits // 8, f"{NAME}-factors": 2}

    @abstractmethod
    def columns(self, layer: LayerView) -> list[Column]:
        """The two columns that hold the layer's tokens."""

    def keys(self, layer: LayerView) -> SketchedKeys:
        """The layer's keys and sketches, for kernels."""
        i = layer.index
        bits, factors = (column.segments(i) for column in self.columns(layer))
        keys: SketchedKeys = layer.device.select.SketchedKeys(
            layer.store.segments(i), bits, factors, self._rotation
        )
        return keys

    def prepare(self, n_ctx: int, k: int) -> None:
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._scratch = self._device.select.SketchScratch(
            heads, kv_heads, n_ctx, RERANKED * k, self._layout
        )

    def add(
        self, layer: LayerView, centre: Array, columns: list[Column], first: int, stop: int
    ) -> None:
        """Index the stored keys of tokens first … stop - 1 less the centre (J, E)."""
        i, store = layer.index, layer.store
        bits, factors = (column.segments(i) for column in columns)
        layer.device.select.sketch_keys(
            self._rotation, centre, store.segments(i), store.layout, bits, factors, first, stop
        )

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        select = layer.device.select
        select.best_sketched(
            q,
            self.keys(layer),
            among,
            wanted,
            select.Lists(chosen.lists, chosen.counts),
            taken=chosen.taken,
            scratch=self._scratch,
        )
        return self.bytes_read(layer.index, among, 0)

    def wanted(self, among: Range, k: int) -> Wanted:
        wanted: Wanted = self._device.select.Wanted(
            k, min(RERANKED * k, max(k, among.last - among.first)), SEED
        )
        return wanted

    def bytes_read(self, layer: int, among: Range, attended: int) -> int:
        passes = self._scratch.group // self._scratch.together
        tokens = (among.last - among.first) * self._config.n_kv_heads
        return int(passes * tokens * (self._rotation.bits // 8 + 2))


class SketchIndex(_Sketches, CentredIndex):
    """Sketches of keys less their centre c, in columns `sketch-SEED-cN` and `…-factors-cN`.

    q · (k - c) orders tokens as q · k does, so queries need no centre.
    """

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        _Sketches.__init__(self, config, store)
        CentredIndex.__init__(self, store, self._items)

    def columns(self, layer: LayerView) -> list[Column]:
        return CentredIndex.columns(self, layer)

    def prepare(self, n_ctx: int, k: int) -> None:
        super().prepare(n_ctx, k)
        # While layer after layer gets another centre, there are two sets of columns.
        for item_bytes in self._items.values():
            self._store.set_aside(item_bytes, min(averaged(n_ctx), 2))


class SlotSketches(_Sketches, SlotIndex):
    """Sketches of the keys in slots, without a centre: the tokens in slots change all the time."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        super().__init__(config, store)
        self._columns = [store.column(name, n_bytes) for name, n_bytes in self._items.items()]
        self.column = self._columns[0]
        self._zero = np.zeros((config.n_kv_heads, config.head_dim), np.float32)

    def columns(self, layer: LayerView) -> list[Column]:
        return self._columns

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        self.add(layer, self._zero, self._columns, first, stop)

    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        i, store = layer.index, layer.store
        bits, factors = (column.segments(i) for column in self._columns)
        layer.device.select.sketch_slots(
            self._rotation, store.segments(i), store.layout, bits, factors, slots, n_tokens
        )
