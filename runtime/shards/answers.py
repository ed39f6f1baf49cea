"""The questions that a shard answers, of any store's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.attention.softmax import Softmax
from ...ops.select import Frame, Range
from ...system.text import one_line
from ...system.values import LARGEST
from ..attend.indexes.sketches import ITEMS
from ..attend.sparse.centred import names_of
from ..attend.sparse.frame import Frames, averaged
from ..store import Column
from ..store.host import HostStore
from .frames import MOST_ROWS, Arrays, FrameError, Kind, Message, text_of
from .greeting import ShardFacts
from .part import NO_LIMITS, Part, Query, Sketches

_MOST_HEADS = 1 << 12


class Answers:
    """Answers of the tokens that `facts` name, of a store with n_tokens; whole: its layers that
    attend to all. Runs on the engine's thread."""

    def __init__(
        self, store: HostStore[Any], facts: ShardFacts, whole: frozenset[int], n_tokens: int
    ) -> None:
        self._store, self.facts, self._whole, self._n_tokens = store, facts, whole, n_tokens
        self._part = Part(store, facts.first, facts.stop)
        self._frames: dict[int, Frame] = {}
        self._by_kind = {
            Kind.ROWS: self._rows,
            Kind.NEAREST: self._nearest,
            Kind.LARGEST: self._largest,
            Kind.CHOSEN: self._chosen,
            Kind.SKETCHED: self._sketched,
        }

    def to(self, question: Message) -> Arrays:
        """The answer to a question; `FrameError`, OpsError and others for one that cannot be."""
        if question.kind not in self._by_kind:
            raise FrameError(f"a message of kind {question.kind.name} is no question")
        return self._by_kind[question.kind](question.arrays)

    def _rows(self, arrays: list[NDArray[Any]]) -> Arrays:
        numbers, q = arrays
        layer, softmax = self._layer(numbers[0]), _softmax(numbers)
        return self._part.all_of(layer, self._queries(q, MOST_ROWS), self.facts.stop, softmax)

    def _largest(self, arrays: list[NDArray[Any]]) -> Arrays:
        numbers, q = arrays
        layer, first, last, k = self._choice(numbers)
        return [self._part.best(layer, Query(self._queries(q, 1)), first, last, k)]

    def _nearest(self, arrays: list[NDArray[Any]]) -> Arrays:
        numbers, signatures, name = arrays
        layer, first, last, k = self._choice(numbers)
        column = self._column(signatures, name)
        query = Query(signatures=signatures, column=column)
        return [self._part.best(layer, query, first, last, k)]

    def _chosen(self, arrays: list[NDArray[Any]]) -> Arrays:
        choice, numbers, q, limits, signatures, name = arrays
        query = Query(self._queries(q, 1))
        if name.size:
            query = Query(q, signatures, self._column(signatures, name))
            group = q.shape[1] // len(signatures)
            _check("signatures", signatures, np.uint64, (len(signatures), group))
        if limits.size:
            _check("limits", limits, np.uint64, (q.shape[1],))
        return self._best_of(query, choice, numbers, limits)

    def _sketched(self, arrays: list[NDArray[Any]]) -> Arrays:
        choice, numbers, q = arrays
        sketches = self._sketches_of(self._layer(numbers[0]))
        query = Query(self._queries(q, 1), sketches=sketches)
        return self._best_of(query, choice, numbers, NO_LIMITS)

    def _sketches_of(self, layer: int) -> Sketches:
        """The pack's sketches of a layer, in the frame that the pack has."""
        n, sizes = averaged(self._n_tokens), (self._part.rotation.bits // 8, 2)
        columns = [self._stored(x, (size,)) for x, size in zip(names_of(ITEMS, n), sizes)]
        if layer not in self._frames:
            frame = Frames(self._store).saved(layer, n)
            if frame is None:
                raise FrameError(
                    "its pack has no frame of its sketches: `kvarn pack index NAME --method topk` "
                    "makes it, then start the shard again"
                )
            self._frames[layer] = frame
        return Sketches(columns[0], columns[1], self._frames[layer])

    def _best_of(
        self, query: Query, choice: NDArray[Any], numbers: NDArray[Any], limits: NDArray[Any]
    ) -> Arrays:
        """Attention to the best of these tokens, and to those that do not compete."""
        _check("numbers", choice, np.int64, (3,))
        first, last, k = choice.tolist()
        if not 0 <= first <= last <= LARGEST or k < 1:
            raise FrameError("a question names tokens that cannot be")
        layer, among = self._layer(numbers[0]), Range(first, last, LARGEST)
        return self._part.chosen(layer, query, among, k, limits, _softmax(numbers))

    def _column(self, signatures: NDArray[Any], name: NDArray[Any]) -> Column:
        """The column of a name, for signatures of queries."""
        if signatures.ndim != 2 or signatures.size > _MOST_HEADS:
            raise FrameError(f"signatures have the shape {signatures.shape}")
        shape = self._store.n_kv_heads, signatures.shape[1]
        _check("signatures", signatures, np.uint64, shape)
        return self._stored(text_of(name), (4, 8))

    def _stored(self, name: str, sizes: Sequence[int]) -> Column:
        """The column of a name, with items of one of these sizes."""
        if name not in self.facts.columns:
            raise FrameError(
                f"its pack has no index {one_line(name, 80)} of its tokens: `kvarn pack index "
                "NAME` with the same --method makes it, then start the shard again"
            )
        column: Column = self._store.columns[name]
        if column.item_bytes not in sizes:
            raise FrameError(f"index {one_line(name, 80)} has items of {column.item_bytes} bytes")
        return column

    def _layer(self, number: float) -> int:
        if number not in self._whole:
            raise FrameError(f"there is no layer {number:g} that attends to all tokens")
        return int(number)

    def _choice(self, numbers: NDArray[Any]) -> tuple[int, int, int, int]:
        """Layer, first and last token, and k."""
        _check("numbers", numbers, np.int64, (4,))
        layer, first, last, k = numbers.tolist()
        if not self.facts.first <= first < last <= self.facts.stop or k < 1:
            raise FrameError("a question names tokens of others")
        return self._layer(layer), first, last, k

    def _queries(self, q: NDArray[Any], most: int) -> NDArray[Any]:
        """The queries of a question, if there can be such."""
        kv_heads, head_dim = self._store.n_kv_heads, self._store.layout.head_dim
        rows, heads = q.shape[:2] if q.ndim == 3 else (0, 0)
        if not 0 < rows <= most or not 0 < heads <= _MOST_HEADS or heads % kv_heads:
            raise FrameError(f"queries have the shape {q.shape}")
        _check("queries", q, np.float32, (rows, heads, head_dim))
        return q


def _check(name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}"
        raise FrameError(f"{name} are {found}, expected {np.dtype(dtype)} {shape}")


def _softmax(numbers: NDArray[Any]) -> Softmax:
    """What a question says beside its layer."""
    _check("numbers", numbers, np.float64, (3,))
    _, scale, softcap = values = numbers.tolist()
    if not all(map(isfinite, values)):
        raise FrameError("numbers of a question are not finite")
    return Softmax(scale, softcap)
