"""A sparse method at work in a context that evicts."""

from __future__ import annotations

import numpy as np

from ....ops.arrays import F32, I32, U32
from ....ops.select import Range
from ...store.ram.slots import SlotStore
from ..base import LayerView
from .attention import SparseAttention
from .index import Chosen, SlotIndex


class SlotAttention(SparseAttention):
    """A sparse method over the slots of one context.

    Sinks and window are found by the positions of the slots' tokens (`Chosen.taken`).
    """

    _index: SlotIndex
    _store: SlotStore

    def _room_for(self, n_ctx: int, room: int) -> Chosen:
        weighed, device = self._index.weighs, self._device
        return Chosen.room_for(self._config, device, room, weighed=weighed, n_slots=n_ctx)

    def replaced(self, layer: LayerView, slots: I32, n_tokens: int, stored: int) -> None:
        column = self._index.column
        if column is None or layer.index not in self._layers.indexed:
            return
        if column.filled[layer.index] < stored:  # opened from a snapshot, and never indexed
            self._index.update(layer, stored, stored)
        else:
            self._index.extend_slots(layer, slots, n_tokens)

    def attend_slots(self, layer: LayerView, q: F32, position: int, stored: int, out: F32) -> None:
        self._attend(layer, q, self._among_slots(layer, position, stored), stored, out)

    def _among_slots(self, layer: LayerView, position: int, stored: int) -> Range | None:
        """All slots in use, those of sinks and window marked as taken; None: everything is read."""
        from ....ops.evict import outside

        if self._among(layer, stored) is None:
            return None
        positions, method = self._store.positions.segments(layer.index), self.method
        first_late = max(method.sink, position + 1 - method.window)
        outside(positions, stored, method.sink, first_late, self._chosen.taken)
        return Range(0, stored, stored)

    def _positions(self, layer: LayerView, lists: U32, stored: int) -> tuple[U32, int]:
        kept, positions = self._store.kept_positions(layer.index, stored), np.zeros_like(lists)
        for row, of_slots, slots, n in zip(positions, kept, lists, self._chosen.counts):
            row[:n] = np.sort(of_slots[slots[:n]])
        return positions, int(kept.max()) + 1
