"""An index of keys in their frame, which is made anew each time the frame changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from ....ops.attention.layout import SEGMENT
from ...loading.model_info import ModelInfo
from ...store import Column, KVStore
from ..base import LayerView
from .frame import COMPLETED, STAGES, Frames, KeyFrame, averaged
from .index import TokenIndex, all_filled, places_of


def names_of(items: Iterable[str], n: int) -> list[str]:
    """The names of columns of these items, in the frame of n segments."""
    return [f"{name}-c{n}" for name in items]


class CentredIndex(TokenIndex):
    """An index in columns that are of one frame: `NAME-cN` for that of N segments (`frame`).

    items: bytes for each token in each of its columns, by their names.
    """

    least = SEGMENT
    scaled: ClassVar[bool] = True
    """Whether the frame has scales, for which queries are measured."""

    def __init__(self, model: ModelInfo, store: KVStore, items: dict[str, int]) -> None:
        self._model, self._store, self._items = model, store, items
        self._frames = Frames(store, self.scaled)
        self._stages = [0] * store.n_layers

    def prepare(self, n_ctx: int, k: int) -> None:
        if n_ctx >= SEGMENT:
            self._frames.prepare(self._model)

    def columns(self, layer: LayerView) -> list[Column]:
        """The columns that hold the layer's tokens, in the order of `items`.

        The store's, each time: another index of the same keys may have dropped them.
        """
        return self._columns_of(self._stages[layer.index])

    def _columns_of(self, n: int) -> list[Column]:
        return [self._store.column(f"{name}-c{n}", size) for name, size in self._items.items()]

    def update(self, layer: LayerView, start: int, stop: int) -> None:
        self.update_with(layer, averaged(stop), start, stop)

    def update_with(self, layer: LayerView, n: int, start: int, stop: int) -> None:
        """Like `update`, with the frame of the first n segments; indexes nothing where n is 0."""
        self._enter(layer, n)
        i = layer.index
        if not n:
            return
        columns = self.columns(layer)
        filled = min(int(column.filled[i]) for column in columns)
        if filled < n * SEGMENT:
            # What is there was made before tokens of the frame were overwritten.
            if filled:
                for column in columns:
                    column.restart()
            filled = 0
        self.extend(layer, min(start, filled), stop)
        for column in columns:
            column.filled[i] = stop

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        if first < stop:
            frame = self._frames.of(layer, self._stages[layer.index])
            self.add(layer, frame, self.columns(layer), first, stop)

    def sources(self, start: int) -> list[object] | None:
        n = averaged(start)
        if start + 1 in COMPLETED or self._stages.count(n) != len(self._stages):
            return None
        columns = self._columns_of(n) if n else []
        return self._frames.known + places_of(columns) if all_filled(columns, start) else None

    def index_one(self, layer: LayerView, start: int, stop: int) -> None:
        if self._stages[layer.index]:
            self.extend(layer, start, stop)

    def mark_indexed(self, stop: int) -> None:
        if n := max(self._stages):
            for column in self._columns_of(n):
                column.filled[:] = stop

    @abstractmethod
    def add(
        self, layer: LayerView, frame: KeyFrame, columns: list[Column], first: int, stop: int
    ) -> None:
        """Index the stored keys of tokens first … stop - 1 in the frame."""

    def mark_skipped(self, layer: LayerView, stop: int) -> None:
        self.mark_skipped_with(layer, averaged(stop), stop)

    def mark_skipped_with(self, layer: LayerView, n: int, stop: int) -> None:
        """Like `mark_skipped`, while other layers have the frame of the first n segments."""
        self._enter(layer, n)
        for column in self.columns(layer) if n else []:
            column.filled[layer.index] = stop
        self._frames.mark_skipped(layer, stop)

    def _enter(self, layer: LayerView, n: int) -> None:
        """Drop the columns of other frames once no layer has them any more."""
        if n != self._stages[layer.index]:
            self._stages[layer.index] = n
            for other in set(STAGES) - set(self._stages):
                for name in names_of(self._items, other):
                    self._store.drop_column(name)
