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
from ..work import Best, Listed, Whole

W = TypeVar("W", Best, Listed, Whole)


class _Kept(NamedTuple):
    """Work, and what it was made for: numbers, and objects that are others where they changed."""

    work: Any
    numbers: tuple[int, ...]
    objects: tuple[object, ...]


class LocalPart:
    """Attention of single tokens to a part that grows. What is the same for the next token runs
    again, and reads its ranges from numbers that are set for each."""

    def __init__(self, part: Part, store: KVStore) -> None:
        self.part, self._store = part, store
        self._kept: dict[tuple[type, int], _Kept] = {}

    def whole(self, layer: int, q: F32, stop: int, softmax: Softmax) -> Whole:
        """`Part.whole` of these queries, which has run."""

        def make() -> Whole:
            return self.part.whole(layer, np.empty_like(q), stop, softmax)

        whole = self._same(Whole, layer, (), (self._store.segments(layer),), make)
        whole.q[:] = q
        whole.last.set([stop - self.part.first - 1])
        whole.run()
        return whole

    def best(self, layer: int, query: Query, among: Range, k: int) -> Best:
        """`Part.best`, which has run; the query's arrays are the same for each token."""
        self.part.set_range(among)
        column = self._store if query.column is None else query.column

        def make() -> Best:
            return self.part.best(layer, query, k)

        objects = query.by, self._store.segments(layer), column.segments(layer)
        best = self._same(Best, layer, (k,), objects, make)
        best.run()
        return best

    def chosen(
        self, layer: int, q: F32, among: Range, best: Best | None, limits: U64, softmax: Softmax
    ) -> Listed:
        """`Part.chosen`, which has run; the arrays are the same for each token."""
        self.part.set_range(among)

        def make() -> Listed:
            return self.part.chosen(layer, q, best, limits, softmax)

        objects = q, self._store.segments(layer), best, limits
        room = self.part.room_for(among, q.shape[1], 0 if best is None else best.entries.shape[1])
        listed = self._same(Listed, layer, (room,), objects, make)
        listed.run()
        return listed

    def sketched(
        self, layer: int, q: F32, sketches: Sketches, among: Range, k: int, softmax: Softmax
    ) -> Listed:
        """`Part.sketched`, which has run; q is the same array for each token."""
        self.part.set_range(among)

        def make() -> Listed:
            return self.part.sketched(layer, q, sketches, k, softmax)

        bits, factors, frame = sketches
        objects = (
            q, self._store.segments(layer), bits.segments(layer), factors.segments(layer), frame,
        )  # fmt: skip
        numbers = k, candidates_for(k, among), self.part.room_for(among, q.shape[1], k)
        listed = self._same(Listed, layer, numbers, objects, make)
        listed.run()
        return listed

    def _same(
        self,
        kind: type[W],
        layer: int,
        numbers: tuple[int, ...],
        objects: tuple[object, ...],
        make: Callable[[], W],
    ) -> W:
        """The layer's work of the token before, where it was made for the same, or new work."""
        kept = self._kept.get((kind, layer))
        if kept is None or kept.numbers != numbers or not all(map(is_, kept.objects, objects)):
            work = make()
            self._kept[kind, layer] = _Kept(work, numbers, objects)
            return work
        return cast(W, kept.work)  # its kind is in the key
