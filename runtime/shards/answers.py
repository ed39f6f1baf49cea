"""The questions that a shard answers, of any store's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from struct import Struct
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
from .part import NO_LIMITS, Part, Query, Sketches, candidates_for
from .work import BestSearch, ListAttention

_MOST_HEADS = 1 << 12
_VARYING = {
    Kind.ROWS: (1, 2),
    Kind.NEAREST: (1, 3),
    Kind.LARGEST: (1, 3),
    Kind.CHOSEN: (1, 5),
    Kind.SKETCHED: (1, 3),
}
"""The arrays of each question, first to stop - 1, that differ where it is asked for other tokens:
those that compete and k (but for rows), queries, limits, signatures."""
_CHOICE, _AMONG = Struct("<3q"), slice(16)
"""first, last and k, which these begin with, and the bytes of the first two."""
_MOST_BYTES = 256 << 20
"""Of the arrays of recorded answers: who asks may name anything."""
_REPLY_BYTES = 16 << 10
"""Beside its arrays."""
_ALL = slice(None)


class _Reply:
    """The answer to questions that differ in their varying arrays alone, with the same k.

    inputs: memory for the first of these, by which `run` then computes the arrays of the answer.
    best: the search that runs before, for queries or signatures at `operand` of the bytes of all.
    """

    def __init__(
        self,
        inputs: Arrays,
        arrays: Arrays,
        run: Callable[[], None],
        best: BestSearch | None = None,
        operand: slice = _ALL,
    ) -> None:
        self._inputs: list[tuple[memoryview, slice]] = []
        n_bytes = 0
        for x in inputs:
            begin, n_bytes = n_bytes, n_bytes + x.nbytes
            if x.size:
                self._inputs.append((x.data.cast("B"), slice(begin, n_bytes)))
        self._arrays, self._run, self._best, self._operand = arrays, run, best, operand
        self._heading = heading_of(Kind.ANSWER, tuple([(x.dtype, x.shape) for x in arrays]))
        self.n_bytes = n_bytes + sum(x.nbytes for x in arrays) + _REPLY_BYTES
        if best is not None:
            self.n_bytes += best.entries.nbytes

    def answer(self, varying: memoryview) -> Message:
        """The answer to a question with these bytes."""
        if self._best is not None:
            self._best.find(bytes(varying[self._operand]), bytes(varying[_AMONG]))
        for memory, place in self._inputs:
            memory[:] = varying[place]
        self._run()
        return Message(Kind.ANSWER, self._heading, joined(self._arrays))


class Answers:
    """Answers of the tokens that `facts` name, of a store with n_tokens; layers: those that attend
    to all. Runs on the engine's thread."""

    def __init__(
        self, store: HostStore[Any], facts: ShardFacts, layers: frozenset[int], n_tokens: int
    ) -> None:
        self._store, self.facts, self._layers, self._n_tokens = store, facts, layers, n_tokens
        self._part = Part(store, facts.first, facts.stop, many=True)
        self._frames: dict[int, Frame] = {}
        self._replies: dict[tuple[object, ...], _Reply] = {}
        self._n_bytes = 0
        self._bests: WeakValueDictionary[tuple[object, ...], BestSearch] = WeakValueDictionary()
        """Those of replies: a question for tokens is followed by one for attention to them."""
        self._by_kind = {
            Kind.ROWS: self._answer_rows,
            Kind.NEAREST: self._answer_nearest,
            Kind.LARGEST: self._answer_largest,
            Kind.CHOSEN: self._answer_chosen,
            Kind.SKETCHED: self._answer_sketched,
        }

    def answer(self, question: Message) -> Message:
        """The answer to a question; `FrameError`, OpsError and others for one that cannot be."""
        if question.kind not in self._by_kind:
            raise FrameError(f"a message of kind {question.kind.name} is no question")
        fixed, varying = question.cut(*_VARYING[question.kind])
        key = fixed, *(() if question.kind is Kind.ROWS else self._choice(varying))
        if (reply := self._replies.get(key)) is not None:
            return reply.answer(varying)
        made = self._by_kind[question.kind](question.arrays)
        if isinstance(made, Message):
            return made
        self._keep(key, made)
        return made.answer(varying)

    def _choice(self, varying: memoryview) -> tuple[int, int, int]:
        """Let the tokens that a question names compete. What is recorded for it depends on the
        result: how many tokens are wanted, how many candidates, and the room that others need."""
        if len(varying) < _CHOICE.size:
            raise FrameError("a question does not say which tokens compete")
        first, last, k = _CHOICE.unpack_from(varying)
        inside = self.facts.first <= first <= last <= self.facts.stop
        if not inside or not min(1, last - first) <= k <= last - first:
            raise FrameError("a question names tokens of others")
        among = Range(first, last, self.facts.stop)
        self._part.set_range(among)
        return k, candidates_for(k, among), self._part.room_for(among, 0, 0)

    def _keep(self, key: tuple[object, ...], reply: _Reply) -> None:
        self._replies[key] = reply
        self._n_bytes += reply.n_bytes
        while self._n_bytes > _MOST_BYTES:
            self._n_bytes -= self._replies.pop(next(iter(self._replies))).n_bytes

    def _answer_rows(self, arrays: list[NDArray[Any]]) -> _Reply | Message:
        numbers, q = arrays
        layer, softmax = self._layer(numbers[0]), _softmax(numbers)
        q, stop = self._queries(q, MOST_ROWS), self.facts.stop
        if len(q) > 1:
            return Message.of(Kind.ANSWER, self._part.attend_rows(layer, q, stop, softmax))
        whole = self._part.attend_all(layer, q.copy(), stop, softmax)
        return _Reply([whole.q], [whole.out, whole.masses], whole.run)

    def _answer_largest(self, arrays: list[NDArray[Any]]) -> _Reply:
        numbers, choice, q = arrays
        return self._reply_entries(numbers, Query(self._queries(q, 1)), choice)

    def _answer_nearest(self, arrays: list[NDArray[Any]]) -> _Reply:
        numbers, choice, signatures, name = arrays
        query = Query(signatures=signatures, column=self._column(signatures, name))
        return self._reply_entries(numbers, query, choice)

    def _reply_entries(self, numbers: NDArray[Any], query: Query, choice: NDArray[Any]) -> _Reply:
        _check("numbers", numbers, np.int64, (1,))
        best = self._best_of(self._layer(numbers[0]), query, _n_wanted(choice))
        return _Reply([], [best.entries], _no_op, best, slice(choice.nbytes, None))

    def _best_of(self, layer: int, query: Query, k: int) -> BestSearch:
        """The search for the best tokens, for queries like this one."""
        key = layer, k, query.n_heads, query.column
        best = self._bests.get(key)
        if best is None:
            of = query._replace(q=query.q.copy(), signatures=query.signatures.copy())
            best = self._bests[key] = self._part.search_best(layer, of, k)
        return best

    def _answer_chosen(self, arrays: list[NDArray[Any]]) -> _Reply:
        numbers, choice, q, limits, signatures, name = arrays
        layer, softmax, k = self._layer(numbers[0]), _softmax(numbers), _n_wanted(choice)
        query = Query(self._queries(q, 1))
        if name.size:
            query = Query(q, signatures, self._column(signatures, name))
            group = q.shape[1] // len(signatures)
            _check("signatures", signatures, np.uint64, (len(signatures), group))
        if limits.size:
            _check("limits", limits, np.uint64, (q.shape[1],))
        best = self._best_of(layer, query, k) if k else None
        inputs, n = [choice.copy(), q.copy(), limits.copy()], choice.nbytes + q.nbytes
        listed = self._part.attend_chosen(layer, inputs[1], best, inputs[2], softmax)
        operand = slice(n + limits.nbytes, None) if name.size else slice(choice.nbytes, n)
        return _reply_of(listed, inputs, best, operand)

    def _answer_sketched(self, arrays: list[NDArray[Any]]) -> _Reply:
        numbers, choice, q = arrays
        layer, softmax, k = self._layer(numbers[0]), _softmax(numbers), _n_wanted(choice)
        q, part = self._queries(q, 1).copy(), self._part
        if k:
            listed = part.attend_sketched(layer, q, self._sketches_of(layer), k, softmax)
        else:
            listed = part.attend_chosen(layer, q, None, NO_LIMITS, softmax)
        return _reply_of(listed, [choice.copy(), q])

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
        if number not in self._layers:
            raise FrameError(f"there is no layer {number:g} that attends to all tokens")
        return int(number)

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


def _n_wanted(choice: NDArray[Any]) -> int:
    """How many tokens each query head of a question wants."""
    _check("tokens that compete", choice, np.int64, (3,))
    return int(choice[2])


def _softmax(numbers: NDArray[Any]) -> Softmax:
    """What a question says beside its layer."""
    _check("numbers", numbers, np.float64, (3,))
    _, scale, softcap = values = numbers.tolist()
    if not all(map(isfinite, values)):
        raise FrameError("numbers of a question are not finite")
    return Softmax(scale, softcap)


def _reply_of(
    listed: ListAttention, inputs: Arrays, best: BestSearch | None = None, operand: slice = _ALL
) -> _Reply:
    arrays = listed.out, listed.masses, listed.lists.counts
    return _Reply(inputs, arrays, listed.run, best, operand)


def _no_op() -> None:
    pass
