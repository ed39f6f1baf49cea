"""The KV cache of a context that keeps all tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from ...ops.arrays import U32
from ...ops.device import Array, Numbers, Places, Recorded
from ...system.spelling import spelt
from ..attend import BoundAttend, LayerView
from ..memory import human_bytes
from ..methods import Progress
from ..store import KVStore
from .base import KVCache


class WholeCache(KVCache):
    """Holds token p at place p of every layer. Single tokens can be recorded in graphs.

    notice: a line that the user should see, or ""; tell: called with later ones.
    """

    keeps_all: ClassVar[bool] = True

    def __init__(
        self,
        store: KVStore,
        attend: BoundAttend,
        layers: list[LayerView],
        n_ctx: int,
        notice: str,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(store, attend, layers)
        self._n_ctx, self._notice, self._tell, self._has_told = n_ctx, notice, tell, False
        self._index_seconds = 0.0
        self._numbers: dict[int, Numbers] = {}
        """By how many parts passes read, the positions at which the parts begin."""
        self._recorded_for: tuple[Places | None, int, Hashable] = None, 0, ()
        self.every_query, self.unrecorded = attend.every_query, attend.unrecorded
        records = attend.records and store.records
        self._graphs: dict[Hashable, Recorded] | None = {} if records else None
        self.graphs = self._graphs

    @property
    def notices(self) -> Sequence[str]:
        return (self._notice, *self.attend.notices) if self._notice else self.attend.notices

    def begin(self, start: int, n_tokens: int, *, prompt: bool) -> None:
        super().begin(start, n_tokens, prompt=prompt)
        # Generated tokens are read one by one, so that each has the bits that it has alone.
        one_by_one = not prompt and self.store.device.least_rows > 1
        n_parts = max(1, n_tokens) if one_by_one else 1
        if n_parts not in self._numbers:
            self._numbers[n_parts] = self.store.device.numbers(n_parts)
        self._starts = self._numbers[n_parts]
        self._starts.set(list(range(start, start + n_parts)))
        self._size = n_tokens // n_parts
        state = self.attend.expect(start, n_tokens, prompt)
        if state is None:
            self.graphs = None
            return
        # Graphs hold addresses: they are emptied where one, or what else they depend on, changes.
        known, places = self._recorded_for, self.store.segments(0)
        threads = self.store.device.threads
        if places is not known[0] or (threads, state) != known[1:]:
            self._recorded_for = places, threads, state
            if self._graphs:
                self._graphs.clear()
        recorded = not prompt or self.attend.records_prompts
        self.graphs = self._graphs if recorded else None

    def _read(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        view = self.layers[layer]
        for part, start in self._parts():
            self.store.append(view.index, k[part], v[part], start)
            self.attend.appended(view, start, self._size)
            self._attend(view, q[part], start, out[part])

    def _read_again(self, layer: int, q: Array, out: Array) -> None:
        for part, start in self._parts():
            self._attend(self.layers[layer], q[part], start, out[part])

    def _parts(self) -> Iterator[tuple[slice, int]]:
        """The rows that are read together, and the position of the first of them."""
        size = self._size
        for i, start in enumerate(self._starts.now()):
            yield slice(i * size, (i + 1) * size), start

    def _attend(self, view: LayerView, q: Array, start: int, out: Array) -> None:
        # Queries that are fewer belong to the last tokens. `start` + 0 would be a plain number.
        first = start + self._size - len(q) if len(q) < self._size else start
        attend = self.attend.attend_prompt if self._prompt else self.attend
        attend(view, q, first, out)

    def end(self, n_tokens: int) -> None:
        if self.store.states is not None:
            super().end(n_tokens)
        self.attend.end(n_tokens)

    def index(self, n_tokens: int, layers: slice, progress: Progress | None) -> None:
        began = time.perf_counter()
        self.store.reserve(n_tokens)
        self.attend.build(self.layers[layers], n_tokens, progress)
        self._index_seconds += time.perf_counter() - began
        is_last = layers.stop is None or layers.stop >= len(self.layers)
        if is_last and (n_bytes := self.store.unsaved_index_bytes) and not self._has_told:
            self._has_told = True
            self._tell(
                f"the pack has no index for this method: made {human_bytes(n_bytes)} of it in "
                f"memory, in {self._index_seconds:.1f} s; `kvarn pack index NAME` with the "
                f"same {spelt('method')} keeps it"
            )

    def kept_positions(self, layer: int, n_tokens: int) -> U32:
        n_heads = self.store.kv_heads_of(self.layers[layer].index)
        return np.tile(np.arange(n_tokens, dtype=np.uint32), (n_heads, 1))

    @property
    def most_tokens(self) -> int:
        return self._n_ctx

    def places_left(self, n_tokens: int) -> int:
        return self._n_ctx - n_tokens

    def has_evicted(self, n_tokens: int) -> bool:
        return False
