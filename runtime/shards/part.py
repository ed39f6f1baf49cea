"""Attention to some of a pack's tokens, in the process that has them: the head's, or a shard's.

Outputs come with their masses, float32 (T, H, 2): m, which was subtracted from the scores of each
row and head, and the total of exp(score - m). With these, `merge` joins those of all processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32, I64, U64
from ...ops.attention.api import AttentionScratch, attention
from ...ops.attention.decode.gathered import GatheredScratch
from ...ops.attention.layout import SEGMENT, n_segments
from ...ops.attention.softmax import Softmax
from ...ops.select import (
    Frame,
    Lists,
    Range,
    Rotation,
    RowSketchScratch,
    SketchedKeys,
    Wanted,
    best_sketched_rows,
)
from ...ops.select.parts import (
    NO_LIMIT,
    LargestScratch,
    ListScratch,
    NearestScratch,
    SurroundScratch,
    largest_entries,
    list_entries,
    nearest_entries,
    surround,
)
from ..attend.indexes.sketches import RERANKED
from ..attend.sparse import SEED
from ..store import Column, KVStore
from .work import BestSearch, Launches, ListAttention, PartAttention, Tokens

_MOST_BLOCKS = 64 << 20
"""Bytes of the outputs of blocks, of rows that are read together."""
_MOST_KEPT = 4
K = TypeVar("K")
T = TypeVar("T")
Output = tuple[F32, F32]
"""Attention float32 (T, H, E), and its masses."""
Find = Callable[[], None]


class Sketches(NamedTuple):
    """The columns of a layer's sketches, bits and factors, and their frame."""

    bits: Column
    factors: Column
    frame: Frame


NO_QUERIES: F32 = np.empty((1, 0, 0), np.float32)
NO_SIGNATURES: U64 = np.empty((0, 0), np.uint64)
NO_LIMITS: U64 = np.empty(0, np.uint64)


class Query(NamedTuple):
    """What tokens are chosen by: the queries (1, H, E), and where signatures choose, those of the
    queries (J, G), and the column with those of the keys; or sketches of keys."""

    q: F32 = NO_QUERIES
    signatures: U64 = NO_SIGNATURES
    column: Column | None = None
    sketches: Sketches | None = None

    @property
    def n_heads(self) -> int:
        """H."""
        return self.q.shape[1] or self.signatures.size

    @property
    def operand(self) -> NDArray[Any]:
        """The queries or signatures that keys are compared with."""
        return self.q if self.column is None else self.signatures


class Part:
    """Tokens first … stop - 1 of a store, for layers that hold all; first: a multiple of 1,024;
    many: see `Tokens`. Its methods run on the engine's thread."""

    def __init__(self, store: KVStore, first: int, stop: int, *, many: bool) -> None:
        self.first, self.stop, self._store, self._many = first, stop, store, many
        self._layout, self._kv_heads = store.layout, store.n_kv_heads
        self._of_rows: dict[int, AttentionScratch] = {}
        self._gathered: dict[int, GatheredScratch] = {}
        self._largest: dict[int, LargestScratch] = {}
        self._nearest: dict[int, NearestScratch] = {}
        self._sketched: dict[int, RowSketchScratch] = {}
        self._lists, self._surround = ListScratch(stop), SurroundScratch()
        self._room = np.empty((self._kv_heads, 0), np.uint32)
        self._range = store.device.numbers(3)

    def segments(self, layer: int) -> I64:
        """Addresses of the segments from `first` on."""
        return np.asarray(self._store.segments(layer))[self.first // SEGMENT :]

    def attend_rows(self, layer: int, q: F32, stop: int, softmax: Softmax) -> Output:
        """Attention of q (T, H, E) to tokens first … stop - 1, all of which each row sees."""
        (n_rows, n_heads, head_dim), j = q.shape, self._kv_heads
        block_bytes = 4 * self._layout.padded * n_heads * (n_segments(stop - self.first) + 1)
        most = max(1, min(n_rows, _MOST_BLOCKS // block_bytes))
        out, masses = np.empty_like(q), np.empty((n_rows, n_heads, 2), np.float32)
        for i in range(0, n_rows, most):
            rows = q[i : i + most]
            t, g = len(rows), n_heads // j
            # The kernel that masks nothing is for one token: rows become query heads of it.
            as_heads = np.ascontiguousarray(rows.reshape(t, j, g, head_dim).swapaxes(0, 1))
            whole = self.attend_all(
                layer, as_heads.reshape(1, t * n_heads, head_dim), stop, softmax
            )
            whole.run()
            by_group = j, t, g, -1
            out[i : i + most] = whole.out.reshape(by_group).swapaxes(0, 1).reshape(rows.shape)
            of_rows = whole.masses.reshape(by_group).swapaxes(0, 1)
            masses[i : i + most] = of_rows.reshape(t, n_heads, 2)
        return out, masses

    def attend_all(self, layer: int, q: F32, stop: int, softmax: Softmax) -> PartAttention:
        """Attention of q (1, H, E) to tokens first … stop - 1."""
        scratch, out = self._rows_scratch(q.shape[1]), np.empty_like(q)
        segments, last = self.segments(layer), self._store.device.numbers(1)
        last.set([stop - self.first - 1])

        def attend() -> None:
            attention(q, segments, last.now()[0], out, softmax=softmax, scratch=scratch)

        return PartAttention(q, out, scratch.masses, last, Launches(self._store.device, attend))

    def _rows_scratch(self, n_heads: int) -> AttentionScratch:
        if n_heads not in self._of_rows:
            n_tokens = self.stop - self.first
            scratch = AttentionScratch(n_heads, self._kv_heads, self._layout, 1, n_tokens)
            _keep(self._of_rows, n_heads, scratch)
        return self._of_rows[n_heads]

    def set_range(self, among: Range) -> None:
        """Let those tokens compete in what is made or runs from now on, recorded or not."""
        self._range.set(among)

    def _competing(self) -> Range:
        return Range(*self._range.now())

    def search_best(self, layer: int, query: Query, k: int) -> BestSearch:
        """The k best of each query head among the tokens that compete, k or more."""
        entries: U64 = np.empty((query.n_heads, k), np.uint64)
        if query.column is None:
            find = self._largest_of(layer, query.q, entries)
        else:
            find = self._nearest_of(layer, query, entries)
        launches = Launches(self._store.device, find)
        return BestSearch(query.operand, entries, launches)

    def attend_chosen(
        self, layer: int, q: F32, best: BestSearch | None, limits: U64, softmax: Softmax
    ) -> ListAttention:
        """Attention of q (1, H, E) to the best tokens, as far as their keys are up to limits (H,),
        or to all of them (0,), and to this part's tokens that do not compete. best: None where none
        do."""
        n_heads, scratch, among = q.shape[1], self._lists, self._competing()
        entries = np.empty((n_heads, 0), np.uint64) if best is None else best.entries
        lists = self._lists_of(self.room_for(among, n_heads, entries.shape[1]))
        if not len(limits):
            limits = np.full(n_heads, NO_LIMIT)

        def find() -> None:
            list_entries(entries, limits, self.first, among, SEED, lists, scratch=scratch)

        return self._listed(layer, q, lists, find, softmax)

    def _listed(
        self, layer: int, q: F32, lists: Lists, find: Find, softmax: Softmax
    ) -> ListAttention:
        n_heads, room = q.shape[1], lists.tokens.shape[1]
        scratch = self._gathered.get(n_heads)
        if scratch is None or scratch.room < room:
            scratch = GatheredScratch(n_heads, self._kv_heads, self._layout, room)
            _keep(self._gathered, n_heads, scratch)
        segments = np.asarray(self._store.segments(layer))
        tokens = Tokens(segments, self.first, softmax, scratch, self._many)
        return ListAttention(self._store.device, q, lists, find, tokens)

    def room_for(self, among: Range, n_heads: int, k: int) -> int:
        """The room that lists have of k tokens for each query head and of those that do not
        compete, which grows in steps."""
        others = among.first - self.first + among.stop - among.last
        return _rounded(others) + self._max_chosen(n_heads, k)

    def _max_chosen(self, n_heads: int, k: int) -> int:
        """The most tokens that the query heads of a KV head choose, k each."""
        return min(k * n_heads // self._kv_heads, self.stop - self.first)

    def _lists_of(self, room: int) -> Lists:
        """Lists with that room, valid until the next ones are filled."""
        if self._room.shape[1] < room:
            self._room = np.empty((self._kv_heads, room), np.uint32)
        return Lists(self._room, np.empty(self._kv_heads, np.int64))

    def _largest_of(self, layer: int, q: F32, entries: U64) -> Find:
        """What finds the largest q · key of each query head; entries (H, k)."""
        (n_heads, k), segments = entries.shape, np.asarray(self._store.segments(layer))
        scratch = self._largest.get(n_heads)
        if scratch is None or scratch.k < k:
            scratch = LargestScratch(n_heads, self._kv_heads, self.stop, _rounded(k), self._layout)
            _keep(self._largest, n_heads, scratch)
        wanted, competing = Wanted(k, k, SEED), _only_competing(self._competing())

        def find() -> None:
            largest_entries(q, segments, competing, wanted, entries, scratch=scratch)

        return find

    def _nearest_of(self, layer: int, query: Query, entries: U64) -> Find:
        """What finds the nearest signatures of each query head; entries (H, k)."""
        (n_heads, k), column, signatures = entries.shape, query.column, query.signatures
        assert column is not None
        scratch = self._nearest.get(n_heads)
        if scratch is None or scratch.k < k:
            scratch = NearestScratch(n_heads, self._kv_heads, self.stop, _rounded(k))
            _keep(self._nearest, n_heads, scratch)
        items, bits = np.asarray(column.segments(layer)), 8 * column.item_bytes
        wanted, competing = Wanted(k, k, SEED), _only_competing(self._competing())

        def find() -> None:
            nearest_entries(signatures, items, bits, competing, wanted, entries, scratch=scratch)

        return find

    def attend_sketched(
        self, layer: int, q: F32, sketches: Sketches, k: int, softmax: Softmax
    ) -> ListAttention:
        """Attention of q (1, H, E) to the k largest q · key of each query head, among the best
        estimates of what competes, k or more, as `topk` chooses them, and to this part's tokens
        that do not compete."""
        n_heads, among = q.shape[1], self._competing()
        n = candidates_for(k, among)
        scratch = self._sketched.get(n_heads)
        if scratch is None or scratch.k < n:
            scratch = RowSketchScratch(
                n_heads, self._kv_heads, self.stop, _rounded(n), self._layout
            )
            _keep(self._sketched, n_heads, scratch)
        keys = SketchedKeys(
            np.asarray(self._store.segments(layer)),
            np.asarray(sketches.bits.segments(layer)),
            np.asarray(sketches.factors.segments(layer)),
            self.rotation,
            sketches.frame,
        )
        lists, wanted = self._lists_of(self.room_for(among, n_heads, k)), Wanted(k, n, SEED)
        shape, competing = (self._kv_heads, self._max_chosen(n_heads, k)), _only_competing(among)
        best = Lists(np.empty(shape, np.uint32), np.empty(shape[0], np.int64))

        def find() -> None:
            tokens, counts = best.tokens[None], best.counts[None]
            best_sketched_rows(q, keys, competing, wanted, tokens, counts, scratch=scratch)
            surround(best, self.first, among, lists, scratch=self._surround)

        return self._listed(layer, q, lists, find, softmax)

    @cached_property
    def rotation(self) -> Rotation:
        """By which all sketches are rotated."""
        return Rotation.random(self._layout.head_dim, SEED)


def candidates_for(k: int, among: Range) -> int:
    """How many candidates by estimates k tokens of those that compete are chosen among."""
    return min(RERANKED * k, among.last - among.first)


def _only_competing(among: Range) -> Range:
    """The tokens that compete, without others."""
    return Range(among.first, among.last, among.last)


def _rounded(k: int) -> int:
    """Room for k candidates, and a few more, as a context grows."""
    return n_segments(max(1, k)) * SEGMENT


def _keep(kept: dict[K, T], key: K, value: T) -> None:
    """Keep something beside few others, the oldest of which goes: who asks may name anything."""
    kept.pop(key, None)
    if len(kept) == _MOST_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value
