"""Indexes in the memory of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import LayerView
from ..encoders import Encoder
from ..sparse import SEED
from ..sparse.resident import ResidentIndex

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.device import Array
    from ...store import KVStore


class ResidentSignatures(ResidentIndex):
    """A signature of every stored key, in the column of the encoder; each query scans all."""

    def __init__(
        self, config: ModelConfig, store: KVStore, encoder: Encoder, notice: str = ""
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
    def state(self) -> None:
        """See `ResidentIndex`: nothing."""
        return None

    def ready(self, layers: set[int], start: int) -> bool:
        """See `ResidentIndex`."""
        assert self.column is not None
        return all(self.column.filled[i] == start for i in layers)

    def added(self, layers: set[int], stop: int) -> None:
        """See `ResidentIndex`."""
        assert self.column is not None
        self.column.filled[:] = stop

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        if first < last:
            self._signatures.index(layer.index, *self._places(layer), first, last - first)

    def add(self, layer: LayerView, start: int) -> None:
        """See `ResidentIndex`."""
        self._signatures.index(layer.index, *self._places(layer), start, 1)

    def choose(self, layer: LayerView, q: Array, start: int, among: Array, lists: object) -> None:
        """See `ResidentIndex`."""
        self._signatures.choose(layer.index, q, start, *self._places(layer), among, lists)

    def _places(self, layer: LayerView) -> tuple[Array, Array]:
        assert self.column is not None
        return layer.store.segments(layer.index), self.column.segments(layer.index)
