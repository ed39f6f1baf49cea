"""Sketches of the stored keys: one bit per dimension (RaBitQ)."""

from __future__ import annotations

from abc import abstractmethod

from ....models.config import ModelConfig
from ....ops.arrays import F32, I32
from ....ops.select import Frame, Range, Rotation, SketchedKeys, Wanted
from ...loading.model_info import ModelInfo
from ...store import Column, KVStore
from ..base import LayerView
from ..sparse import SEED, CentredIndex, Chosen, SlotIndex, TokenIndex
from ..sparse.frame import KeyFrame, averaged

RERANKED = 2
"""How many candidates per wanted token sketches find; these are then scored exactly."""
NAME = f"sketch-{SEED}-scaled"
ITEMS = NAME, f"{NAME}-factors"
"""In columns of bits / 8 and of 2 bytes (f16)."""


class _Sketches(TokenIndex):
    """One bit per rotated dimension and a factor for every stored key (`ITEMS`).

    All layers share one rotation: the estimates need a random one, not one per layer.
    """

    records = True

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self._config, self._layout, self._device = config, store.layout, store.device
        self._rotation: Rotation = self._device.select.Rotation.random(config.head_dim, SEED)
        self._items = dict(zip(ITEMS, (self._rotation.bits // 8, 2)))

    @abstractmethod
    def columns(self, layer: LayerView) -> list[Column]:
        """The two columns that hold the layer's tokens."""

    @abstractmethod
    def frame(self, layer: LayerView) -> Frame:
        """The frame of the layer's sketches."""

    def keys(self, layer: LayerView) -> SketchedKeys:
        """The layer's keys and sketches, for kernels."""
        return self._keys(layer, self.columns(layer), self.frame(layer))

    def _keys(self, layer: LayerView, columns: list[Column], frame: Frame) -> SketchedKeys:
        i = layer.index
        bits, factors = (column.segments(i) for column in columns)
        keys: SketchedKeys = layer.device.select.SketchedKeys(
            layer.store.segments(i), bits, factors, self._rotation, frame
        )
        return keys

    def prepare(self, n_ctx: int, k: int) -> None:
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._scratch = self._device.select.SketchScratch(
            heads, kv_heads, n_ctx, RERANKED * k, self._layout
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
    """Sketches of keys in their frame, in columns `sketch-SEED-scaled-cN` and `…-factors-cN`.

    q · (k - c) orders tokens as q · k does, so queries need no centre.
    """

    def __init__(self, model: ModelInfo, store: KVStore) -> None:
        _Sketches.__init__(self, model.config, store)
        CentredIndex.__init__(self, model, store, self._items)

    def columns(self, layer: LayerView) -> list[Column]:
        return CentredIndex.columns(self, layer)

    def frame(self, layer: LayerView) -> Frame:
        return self._frames.of(layer, self._stages[layer.index]).padded

    def add(
        self, layer: LayerView, frame: KeyFrame, columns: list[Column], first: int, stop: int
    ) -> None:
        keys = self._keys(layer, columns, frame.padded)
        layer.device.select.sketch_keys(keys, layer.store.layout, first, stop)

    def prepare(self, n_ctx: int, k: int) -> None:
        _Sketches.prepare(self, n_ctx, k)
        CentredIndex.prepare(self, n_ctx, k)
        # While layer after layer gets another frame, there are two sets of columns.
        for item_bytes in self._items.values():
            self._store.reserve_columns(item_bytes, min(averaged(n_ctx), 2))


class SlotSketches(_Sketches, SlotIndex):
    """Sketches of the keys in slots, in no frame: the tokens in slots change all the time."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        super().__init__(config, store)
        self._columns = [store.column(name, n_bytes) for name, n_bytes in self._items.items()]
        self.column = self._columns[0]
        self._plain: Frame = self._device.select.Frame.plain(config.n_kv_heads, config.head_dim)

    def columns(self, layer: LayerView) -> list[Column]:
        return self._columns

    def frame(self, layer: LayerView) -> Frame:
        return self._plain

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        layer.device.select.sketch_keys(self.keys(layer), layer.store.layout, first, stop)

    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        select, layout = layer.device.select, layer.store.layout
        select.sketch_slots(self.keys(layer), layout, slots, n_tokens)
