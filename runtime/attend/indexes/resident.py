"""Indexes in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from ....ops.select import sketch_bits
from ..base import LayerView
from ..encoders import Encoder
from ..sparse import SEED, CentredIndex
from ..sparse.centre import averaged
from ..sparse.resident import ResidentIndex
from .sketches import NAME, RERANKED

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.device import Array
    from ....ops.select import Range
    from ...store import Column
    from ...store.resident import ResidentStore
    from ..base import F32


class ResidentSignatures(ResidentIndex):
    """A signature of every stored key, in the column of the encoder; each query scans all."""

    def __init__(
        self, config: ModelConfig, store: ResidentStore, encoder: Encoder, notice: str = ""
    ) -> None:
        self.notices = (notice,) if notice else ()
        self.item_bytes = encoder.bits // 8
        self.column = store.column(encoder.name, self.item_bytes)
        self._config, self._layout, self._device = config, store.layout, store.device
        self._networks = {}
        for i, layer in enumerate(config.layers):
            if layer.window is None:
                networks = encoder.networks(config, i)
                if store.centre is not None:
                    networks = networks.for_centred_keys(store.centre[i])
                self._networks[i] = networks.queries, networks.keys

    def prepare(self, n_ctx: int, k: int) -> None:
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._signatures = self._device.select.signatures(
            self._networks, heads, kv_heads, self._layout, n_ctx, SEED
        )
        self._networks = {}

    @property
    def state(self) -> Hashable:
        """See `ResidentIndex`: nothing."""
        return ()

    def ready(self, layers: set[int], start: int) -> bool:
        """See `ResidentIndex`."""
        assert self.column is not None
        return all(self.column.filled[i] == start for i in layers)

    def indexed(self, stop: int) -> None:
        """See `ResidentIndex`."""
        assert self.column is not None
        self.column.filled[:] = stop

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        if first < last:
            self._signatures.index(layer.index, *self._places(layer), first, last - first)

    def index_one(self, layer: LayerView, start: int, stop: int) -> None:
        """See `ResidentIndex`."""
        self._signatures.index(layer.index, *self._places(layer), start, 1)

    def choose(self, layer: LayerView, q: Array, start: int, among: Array, lists: object) -> None:
        """See `ResidentIndex`."""
        self._signatures.choose(layer.index, q, start, *self._places(layer), among, lists)

    def _places(self, layer: LayerView) -> tuple[Array, Array]:
        assert self.column is not None
        return layer.store.segments(layer.index), self.column.segments(layer.index)


class ResidentSketches(ResidentIndex, CentredIndex):
    """Sketches of keys less their centre, in the columns that `SketchIndex` has."""

    def __init__(self, config: ModelConfig, store: ResidentStore) -> None:
        self._config, self._resident, self._layout = config, store, store.layout
        n_bytes = {NAME: sketch_bits(config.head_dim) // 8, f"{NAME}-factors": 2}
        super().__init__(store, n_bytes)
        self._centre_of: dict[int, tuple[F32, Array]] = {}

    def prepare(self, n_ctx: int, k: int) -> None:
        heads, kv_heads = self._config.n_heads, self._config.n_kv_heads
        self._sketches = self._resident.device.select.sketches(
            heads, kv_heads, self._layout, n_ctx, RERANKED * k, SEED
        )
        self.item_bytes = self._sketches.passes * sum(self._items.values())
        # While layer after layer gets another centre, there are two sets of columns.
        for item_bytes in self._items.values():
            self._resident.set_aside(item_bytes, min(averaged(n_ctx), 2))

    @property
    def state(self) -> Hashable:
        """See `ResidentIndex`: the columns."""
        n = max(self._stages)
        return tuple(self._columns(n)) if n else ()

    def ready(self, layers: set[int], start: int) -> bool:
        """See `ResidentIndex`."""
        n = averaged(start + 1)
        if n != averaged(start) or any(self._stages[i] != n for i in layers):
            return False
        return not n or all(one.filled[i] == start for one in self._columns(n) for i in layers)

    def indexed(self, stop: int) -> None:
        """See `ResidentIndex`."""
        if n := max(self._stages):
            for column in self._columns(n):
                column.filled[:] = stop

    def add(
        self, layer: LayerView, centre: F32, columns: list[Column], first: int, last: int
    ) -> None:
        known, place = self._centre_of.get(layer.index, (None, None))
        if known is not centre:
            place = self._resident.device.put(centre, place)
            self._centre_of[layer.index] = centre, place
        self._index(layer, first, last - first)

    def index_one(self, layer: LayerView, start: int, stop: int) -> None:
        """See `ResidentIndex`."""
        if self._stages[layer.index]:
            self._index(layer, start, 1)

    def numbers(self, among: Range, k: int) -> tuple[int, ...]:
        return *among, k, RERANKED * k

    def choose(self, layer: LayerView, q: Array, start: int, among: Array, lists: object) -> None:
        """See `ResidentIndex`."""
        self._index(layer, start, 1)
        self._sketches.choose(q, *self._places(layer), among, lists)

    def _index(self, layer: LayerView, start: int, n_tokens: int) -> None:
        _, centre = self._centre_of[layer.index]
        self._sketches.index(centre, *self._places(layer), start, n_tokens)

    def _places(self, layer: LayerView) -> tuple[Array, ...]:
        i = layer.index
        return layer.store.segments(i), *(one.segments(i) for one in self.columns(layer))

    def _columns(self, n: int) -> list[Column]:
        return [self._store.column(f"{name}-c{n}", size) for name, size in self._items.items()]
