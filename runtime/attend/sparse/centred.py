"""An index of keys less their centre, which is made anew each time the centre changes."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from ....ops.attention.layout import SEGMENT
from .centre import STAGES, Centres, averaged
from .index import TokenIndex

if TYPE_CHECKING:
    from ...store import Column, KVStore
    from ..base import F32, LayerView


class CentredIndex(TokenIndex):
    """An index in columns that are of one centre: `NAME-cN` for that of N segments (`centre`).

    items: bytes for each token in each of its columns, by their names.
    """

    least = SEGMENT

    def __init__(self, store: KVStore, items: dict[str, int]) -> None:
        self._store, self._items = store, items
        self._centres = Centres(store)
        self._stages = [0] * store.n_layers
        self._columns: dict[int, list[Column]] = {}

    def columns(self, layer: LayerView) -> list[Column]:
        """The columns that hold the layer's tokens, in the order of `items`."""
        return self._columns[self._stages[layer.index]]

    def cover(self, layer: LayerView, start: int, stop: int) -> None:
        n, i = self._enter(layer, stop), layer.index
        if not n:
            return
        columns = self._columns[n]
        filled = min(int(column.filled[i]) for column in columns)
        if filled < n * SEGMENT:
            # What is there was made before tokens of the centre were overwritten.
            if filled:
                for column in columns:
                    column.restart()
            filled = 0
        self.extend(layer, min(start, filled), stop)
        for column in columns:
            column.filled[i] = stop

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        if first < last:
            centre = self._centres.of(layer, self._stages[layer.index])
            self.add(layer, centre, self.columns(layer), first, last)

    @abstractmethod
    def add(
        self, layer: LayerView, centre: F32, columns: list[Column], first: int, last: int
    ) -> None:
        """Index the stored keys of tokens first … last - 1 less the centre (J, E)."""

    def leave_out(self, layer: LayerView, stop: int) -> None:
        n = self._enter(layer, stop)
        for column in self._columns.get(n, []):
            column.filled[layer.index] = stop
        self._centres.leave_out(layer, stop)

    def _enter(self, layer: LayerView, stored: int) -> int:
        """Have the columns of the centre of so many tokens; returns the segments it is of."""
        n, i = averaged(stored), layer.index
        if n != self._stages[i]:
            self._stages[i] = n
            if n and n not in self._columns:
                made = [self._store.column(f"{name}-c{n}", b) for name, b in self._items.items()]
                self._columns[n] = made
            for other in set(STAGES) - set(self._stages):
                self._columns.pop(other, None)
                for name in self._items:
                    self._store.drop_column(f"{name}-c{other}")
        return n
