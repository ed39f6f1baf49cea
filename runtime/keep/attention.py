"""Attention as the forward pass calls it, over a context's store."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from .cache import minus_centre

if TYPE_CHECKING:
    from ...ops.device import Array, Places, Recorded
    from ..attend import BoundAttend, LayerView
    from ..store import KVStore


class StoredAttention:
    """`models.attention.Attention`: append to the store, then attend."""

    def __init__(self, layers: list[LayerView], attend: BoundAttend, store: KVStore) -> None:
        self.layers, self._attend, self._store = layers, attend, store
        self._device = device = store.device
        self._start, self._prompt = device.numbers(1), True
        self._recorded_for: tuple[Places | None, int, Hashable] = None, 0, ()
        centre = minus_centre(store)
        self._minus_centre = None if centre is None else device.put(centre)
        self.every_query = attend.every_query
        records = attend.records and store.records
        self._graphs: dict[bool, Recorded] | None = {} if records else None
        self.graphs = self._graphs

    def begin(self, start: int, n_tokens: int, prompt: bool) -> None:
        """See `CacheAttention.begin`."""
        self._start.set((start,))
        self._prompt = prompt
        state = self._attend.expect(start, n_tokens, prompt)
        places, threads = self._store.segments(0), self._device.threads
        if state is None:
            self.graphs = None
            return
        known = self._recorded_for
        if places is not known[0] or (threads, state) != known[1:]:
            self._recorded_for = places, threads, state
            if self._graphs:
                self._graphs.clear()
        recorded = not prompt or self._attend.records_prompts
        self.graphs = self._graphs if recorded else None

    def done(self, n_tokens: int) -> None:
        """See `CacheAttention.done`."""
        self._attend.done(n_tokens)

    def __call__(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        (start,) = self._start.now()
        if self._minus_centre is not None:
            self._device.pointwise.add_row(k.reshape(len(k), -1), self._minus_centre[layer])
        self._store.append(layer, k, v, start)
        view = self.layers[layer]
        self._attend.appended(view, start, len(k))
        # Queries that are fewer belong to the last tokens. `start` + 0 would be a plain number.
        first = start + len(k) - len(q) if len(q) < len(k) else start
        attend = self._attend.attend_prompt if self._prompt else self._attend
        attend(view, q, first, out)
