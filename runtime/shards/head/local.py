"""The head's part of a context: the tokens after those of the shards."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ....ops.arrays import F32, U64
from ....ops.attention.softmax import Softmax
from ....ops.select import Range
from ...store import KVStore
from ..part import Part, Query, Sketches, candidates_for
from ..work import BestSearch, ListAttention, PartAttention

W = TypeVar("W", BestSearch, ListAttention, PartAttention)


class _CachedWork(NamedTuple):
    """Work, and what it was made for: numbers, and objects that are others where they changed."""

    work: Any
    numbers: tuple[int, ...]
    objects: tuple[object, ...]


class LocalPart:
    """Attention of single tokens to a part that grows. What is the same for the next token runs
    again, and reads its ranges from numbers that are set for each."""

    def __init__(self, part: Part, store: KVStore) -> None:
        self.part, self._store = part, store
        self._cache: dict[tuple[type, int], _CachedWork] = {}

    def attend_all(self, layer: int, q: F32, stop: int, softmax: Softmax) -> PartAttention:
        """`Part.attend_all` of these queries, which has run."""

        def make() -> PartAttention:
            return self.part.attend_all(layer, np.empty_like(q), stop, softmax)

        whole = self._reuse(PartAttention, layer, (), (self._store.segments(layer),), make)
        whole.q[:] = q
        whole.last.set([stop - self.part.first - 1])
        whole.run()
        return whole

    def search_best(self, layer: int, query: Query, among: Range, k: int) -> BestSearch:
        """`Part.search_best`, which has run; the query's arrays are the same for each token."""
        self.part.set_range(among)
        column = self._store if query.column is None else query.column

        def make() -> BestSearch:
            return self.part.search_best(layer, query, k)

        objects = query.operand, self._store.segments(layer), column.segments(layer)
        best = self._reuse(BestSearch, layer, (k,), objects, make)
        best.run()
        return best

    def attend_chosen(
        self,
        layer: int,
        q: F32,
        among: Range,
        best: BestSearch | None,
        limits: U64,
        softmax: Softmax,
    ) -> ListAttention:
        """`Part.attend_chosen`, which has run; the arrays are the same for each token."""
        self.part.set_range(among)

        def make() -> ListAttention:
            return self.part.attend_chosen(layer, q, best, limits, softmax)

        objects = q, self._store.segments(layer), best, limits
        room = self.part.room_for(among, q.shape[1], 0 if best is None else best.entries.shape[1])
        listed = self._reuse(ListAttention, layer, (room,), objects, make)
        listed.run()
        return listed

    def attend_sketched(
        self, layer: int, q: F32, sketches: Sketches, among: Range, k: int, softmax: Softmax
    ) -> ListAttention:
        """`Part.attend_sketched`, which has run; q is the same array for each token."""
        self.part.set_range(among)

        def make() -> ListAttention:
            return self.part.attend_sketched(layer, q, sketches, k, softmax)

        bits, factors, frame = sketches
        objects = (
            q, self._store.segments(layer), bits.segments(layer), factors.segments(layer), frame,
        )  # fmt: skip
        numbers = k, candidates_for(k, among), self.part.room_for(among, q.shape[1], k)
        listed = self._reuse(ListAttention, layer, numbers, objects, make)
        listed.run()
        return listed

    def _reuse(
        self,
        kind: type[W],
        layer: int,
        numbers: tuple[int, ...],
        objects: tuple[object, ...],
        make: Callable[[], W],
    ) -> W:
        """The layer's work of the token before, where it was made for the same, or new work."""
        kept = self._cache.get((kind, layer))
        if kept is None or kept.numbers != numbers or not all(map(is_, kept.objects, objects)):
            work = make()
            self._cache[kind, layer] = _CachedWork(work, numbers, objects)
            return work
        return cast(W, kept.work)  # its kind is in the key
