"""Attention as the forward pass calls it, over a context's store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...jit.launch import Cell, Graph
from ...jit.threads import n_threads
from ...ops.pointwise import add_row
from .cache import minus_centre

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...models.attention import F32
    from ..attend import BoundAttend, LayerView
    from ..store import KVStore


class StoredAttention:
    """`models.attention.Attention`: append to the store, then attend."""

    def __init__(self, layers: list[LayerView], attend: BoundAttend, store: KVStore) -> None:
        self.layers, self._attend, self._store = layers, attend, store
        self._start, self._prompt = np.zeros(1, np.int64), True
        self._recorded_for: tuple[NDArray[np.int64] | None, int] = None, 0
        self._minus_centre = minus_centre(store)
        self.every_query = attend.every_query
        records = attend.records and store.records
        self._graphs: dict[bool, Graph] | None = {} if records else None
        self.graphs = self._graphs

    def begin(self, start: int, prompt: bool) -> None:
        """See `CacheAttention.begin`."""
        self._start[0], self._prompt = start, prompt
        places, threads = self._store.segments(0), n_threads()
        if places is not self._recorded_for[0] or threads != self._recorded_for[1]:
            self._recorded_for = places, threads
            if self._graphs:
                self._graphs.clear()
        recorded = not prompt or self._attend.records_prompts
        self.graphs = self._graphs if recorded else None

    def __call__(self, layer: int, q: F32, k: F32, v: F32, out: F32) -> None:
        start = Cell.at(self._start)
        if self._minus_centre is not None:
            add_row(k.reshape(len(k), -1), self._minus_centre[layer])
        self._store.append(layer, k, v, start)
        view = self.layers[layer]
        self._attend.appended(view, start, len(k))
        # Queries that are fewer belong to the last tokens. `start` + 0 would not be a `Cell`.
        first = start + len(k) - len(q) if len(q) < len(k) else start
        attend = self._attend.attend_prompt if self._prompt else self._attend
        attend(view, q, first, out)
