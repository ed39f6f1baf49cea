"""What stores in the host's memory share, and those that map files."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import numpy as np

from ...ops.arrays import F32, I64
from ...ops.attention.layout import TileLayout
from .base import Column, KVStore
from .states import States
from .windowed import WindowedLayers

C = TypeVar("C", bound=Column)


class HostStore(KVStore, Generic[C]):
    """A store whose segments the CPU finds by their addresses: what memory and packs share.

    windowed: the layers that have a window, where any are held so. n_tokens: those that it holds.
    """

    records = True

    def __init__(self, windowed: WindowedLayers | None, n_tokens: int) -> None:
        self.windowed = windowed
        self.columns: dict[str, C] = {}
        self._reserved = self._start = n_tokens
        if windowed is not None:
            self.windowed_layers = windowed.layers

    @abstractmethod
    def _place(self) -> None:
        """Call `_place_segments`, because a place has changed."""

    def _place_segments(self, whole: list[I64], n: int) -> None:
        """Take over the addresses of `n` segments, given for the layers without a window."""
        self._whole = whole
        self._places = whole if self.windowed is None else self.windowed.places(whole, n)

    @abstractmethod
    def _cut(self, start: int) -> None:
        """What `cut` has to do beside columns, and `append` before tokens overwrite others."""

    def cut(self, n_tokens: int) -> None:
        self._start = int(n_tokens)
        if self.states is not None:
            self.states.cut(self._start)
        self._cut(self._start)
        for column in self.columns.values():
            np.minimum(column.filled, n_tokens, out=column.filled)

    def reaches(self, n_tokens: int) -> bool:
        whole = self.windowed is None or self.windowed.reaches(n_tokens)
        return whole and super().reaches(n_tokens)

    def go_back(self, n_tokens: int) -> int:
        moved = False
        while not self.reaches(n_tokens):
            if self.windowed is not None and not self.windowed.reaches(n_tokens):
                n_tokens, moved = self._go_back(n_tokens), True
            if self.states is not None:
                n_tokens = self._restore_states(self.states, n_tokens)
        if moved:
            self._place()
        self._start = min(self._start, n_tokens)
        return n_tokens

    def _restore_states(self, states: States, n_tokens: int) -> int:
        """See `States.go_back`."""
        return states.go_back(n_tokens)

    def _go_back(self, n_tokens: int) -> int:
        """See `WindowedLayers.go_back`."""
        assert self.windowed is not None
        return self.windowed.go_back(n_tokens)

    def pin(self, n_tokens: int) -> None:
        super().pin(n_tokens)
        if self.windowed is not None:
            self.windowed.pin(n_tokens)

    def first(self, layer: int) -> int:
        windowed = self.windowed
        return windowed.first if windowed is not None and layer in windowed.layers else 0

    def layout_of(self, layer: int) -> TileLayout:
        return self._geometry(layer)[0]

    def kv_heads_of(self, layer: int) -> int:
        return self._geometry(layer)[1]

    def _geometry(self, layer: int) -> tuple[TileLayout, int]:
        windowed = self.windowed
        if windowed is not None and layer in windowed.layers:
            return windowed.layout, windowed.n_kv_heads
        return self.layout, self.n_kv_heads

    def segments(self, layer: int) -> I64:
        return self._places[layer]

    def append(self, layer: int, k: F32, v: F32, start: int) -> None:
        for column in self.columns.values():
            column.filled[layer] = min(column.filled[layer], start)
        self.device.append_kv(k, v, self._places[layer], self.layout_of(layer), start)

    def drop_column(self, name: str) -> None:
        self.columns.pop(name, None)
