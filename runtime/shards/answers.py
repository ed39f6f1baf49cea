"""The questions that a shard answers, of any store's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ...ops.attention.softmax import Softmax
from ...ops.select import Frame, Range
from ...system.text import one_line
from ..attend.indexes.sketches import ITEMS
from ..attend.sparse.centred import names_of
from ..attend.sparse.frame import Frames, averaged
from ..store import Column
from ..store.host import HostStore
from .frames import MOST_ROWS, Arrays, FrameError, Kind, Message, heading_of, joined, text_of
from .greeting import ShardFacts
from .part import NO_LIMITS, Part, Query, Sketches
from .work import Best, Listed

_MOST_HEADS = 1 << 12
_VARYING = {
    Kind.ROWS: (1, 2),
    Kind.NEAREST: (1, 2),
    Kind.LARGEST: (1, 2),
    Kind.CHOSEN: (2, 5),
    Kind.SKETCHED: (2, 3),
}
"""The arrays of each question, first to stop - 1, that differ where it is asked for other tokens:
queries, limits, signatures."""
_MOST_BYTES = 256 << 20
"""Of the arrays of recorded answers: who asks may name anything."""
_REPLY_BYTES = 16 << 10
"""Beside its arrays."""
_ALL = slice(None)


class _Reply:
    """The answer to questions that differ in their varying arrays alone.

    inputs: memory for the first of these, by which `run` then computes the arrays of the answer.
    best: what is found before, for queries or signatures at `by` of the bytes of all.
    """

    def __init__(
        self,
        inputs: Arrays,
        arrays: Arrays,
        run: Callable[[], None],
        best: Best | None = None,
        by: slice = _ALL,
    ) -> None:
        self._inputs: list[tuple[memoryview, slice]] = []
        n_bytes = 0
        for x in inputs:
            begin, n_bytes = n_bytes, n_bytes + x.nbytes
            if x.size:
                self._inputs.append((x.data.cast("B"), slice(begin, n_bytes)))
        self._arrays, self._run, self._best, self._by = arrays, run, best, by
        self._heading = heading_of(Kind.ANSWER, tuple([(x.dtype, x.shape) for x in arrays]))
        self.n_bytes = n_bytes + sum(x.nbytes for x in arrays) + _REPLY_BYTES
        if best is not None:
            self.n_bytes += best.entries.nbytes

    def to(self, varying: memoryview) -> Message:
        """The answer to a question with these bytes."""
        if self._best is not None:
            self._best.find(varying[self._by])
        for memory, place in self._inputs:
            memory[:] = varying[place]
        self._run()
        return Message(Kind.ANSWER, self._heading, joined(self._arrays))


class Answers:
    """Answers of the tokens that `facts` name, of a store with n_tokens; whole: its layers that
    attend to all. Runs on the engine's thread."""

    def __init__(
        self, store: HostStore[Any], facts: ShardFacts, whole: frozenset[int], n_tokens: int
    ) -> None:
        self._store, self.facts, self._whole, self._n_tokens = store, facts, whole, n_tokens
        self._part = Part(store, facts.first, facts.stop, many=True)
        self._frames: dict[int, Frame] = {}
        self._replies: dict[bytes, _Reply] = {}
        self._n_bytes = 0
        self._bests: WeakValueDictionary[tuple[object, ...], Best] = WeakValueDictionary()
        """Those of replies: a question for tokens is followed by one for attention to them."""
        self._by_kind = {
            Kind.ROWS: self._rows,
            Kind.NEAREST: self._nearest,
            Kind.LARGEST: self._largest,
            Kind.CHOSEN: self._chosen,
            Kind.SKETCHED: self._sketched,
        }

    def to(self, question: Message) -> Message:
        """The answer to a question; `FrameError`, OpsError and others for one that cannot be."""
        if question.kind not in self._by_kind:
            raise FrameError(f"a message of kind {question.kind.name} is no question")
        fixed, varying = question.cut(*_VARYING[question.kind])
        if (reply := self._replies.get(fixed)) is not None:
            return reply.to(varying)
        made = self._by_kind[question.kind](question.arrays)
        if isinstance(made, Message):
            return made
        self._keep(fixed, made)
        return made.to(varying)

    def _keep(self, fixed: bytes, reply: _Reply) -> None:
        self._replies[fixed] = reply
        self._n_bytes += reply.n_bytes
        while self._n_bytes > _MOST_BYTES:
            self._n_bytes -= self._replies.pop(next(iter(self._replies))).n_bytes

    def _rows(self, arrays: list[NDArray[Any]]) -> _Reply | Message:
        numbers, q = arrays
        layer, softmax = self._layer(numbers[0]), _softmax(numbers)
        q, stop = self._queries(q, MOST_ROWS), self.facts.stop
        if len(q) > 1:
            return Message.of(Kind.ANSWER, self._part.all_of(layer, q, stop, softmax))
        whole = self._part.whole(layer, q.copy(), stop, softmax)
        return _Reply([whole.q], [whole.out, whole.masses], whole.run)

    def _largest(self, arrays: list[NDArray[Any]]) -> _Reply:
        numbers, q = arrays
        layer, among, k = self._choice(numbers)
        return self._named(layer, Query(self._queries(q, 1)), among, k)

    def _nearest(self, arrays: list[NDArray[Any]]) -> _Reply:
        numbers, signatures, name = arrays
        layer, among, k = self._choice(numbers)
        query = Query(signatures=signatures, column=self._column(signatures, name))
        return self._named(layer, query, among, k)

    def _named(self, layer: int, query: Query, among: Range, k: int) -> _Reply:
        best = self._best_of(layer, query, among, k)
        return _Reply([], [best.entries], _nothing, best)

    def _best_of(self, layer: int, query: Query, among: Range, k: int) -> Best:
        """What finds the best tokens for queries like this one."""
        key = layer, among[:2], k, query.n_heads, query.column
        best = self._bests.get(key)
        if best is None:
            of = query._replace(q=query.q.copy(), signatures=query.signatures.copy())
            n = among.last - self.facts.first
            best = self._part.best(layer, of, among, n, k)
            self._bests[key] = best
        return best

    def _chosen(self, arrays: list[NDArray[Any]]) -> _Reply:
        choice, numbers, q, limits, signatures, name = arrays
        layer, among, k, softmax = self._attended(choice, numbers)
        query = Query(self._queries(q, 1))
        if name.size:
            query = Query(q, signatures, self._column(signatures, name))
            group = q.shape[1] // len(signatures)
            _check("signatures", signatures, np.uint64, (len(signatures), group))
        if limits.size:
            _check("limits", limits, np.uint64, (q.shape[1],))
        best = self._best_of(layer, query, among, k) if among.first < among.last else None
        inputs, n = [q.copy(), limits.copy()], q.nbytes
        listed = self._part.chosen(layer, inputs[0], among, best, inputs[1], softmax)
        by = slice(n + limits.nbytes, None) if name.size else slice(n)
        return _reply_of(listed, inputs, best, by)

    def _sketched(self, arrays: list[NDArray[Any]]) -> _Reply:
        choice, numbers, q = arrays
        layer, among, k, softmax = self._attended(choice, numbers)
        q, part = self._queries(q, 1).copy(), self._part
        if among.first == among.last:
            listed = part.chosen(layer, q, among, None, NO_LIMITS, softmax)
        else:
            listed = part.sketched(layer, q, self._sketches_of(layer), among, k, softmax)
        return _reply_of(listed, [q])

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

    def _attended(
        self, choice: NDArray[Any], numbers: NDArray[Any]
    ) -> tuple[int, Range, int, Softmax]:
        """Layer, tokens that compete and others of this part, k, and how scores are weighed."""
        _check("numbers", choice, np.int64, (3,))
        first, last, k = choice.tolist()
        if not self.facts.first <= first <= last <= self.facts.stop or k < 1:
            raise FrameError("a question names tokens of others")
        among = Range(first, last, self.facts.stop)
        return self._layer(numbers[0]), among, k, _softmax(numbers)

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

    def _choice(self, numbers: NDArray[Any]) -> tuple[int, Range, int]:
        """Layer, tokens that compete, one or more, and k."""
        _check("numbers", numbers, np.int64, (4,))
        layer, first, last, k = numbers.tolist()
        if not self.facts.first <= first < last <= self.facts.stop or k < 1:
            raise FrameError("a question names tokens of others")
        return self._layer(layer), Range(first, last, last), k

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


def _reply_of(listed: Listed, inputs: Arrays, best: Best | None = None, by: slice = _ALL) -> _Reply:
    arrays = listed.out, listed.masses, listed.lists.counts
    return _Reply(inputs, arrays, listed.run, best, by)


def _nothing() -> None:
    pass
