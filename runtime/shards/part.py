"""Attention to some of a pack's tokens, in the process that has them: the head's, or a shard's.

Outputs come with their masses, float32 (T, H, 2): m, which was subtracted from the scores of each
row and head, and the total of exp(score - m). With these, `merge` joins those of all processes.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from ...ops.arrays import F32, I64, U64
from ...ops.attention.api import AttentionScratch, attention
from ...ops.attention.decode.gathered import GatheredScratch, gathered_attention
from ...ops.attention.layout import SEGMENT, n_segments
from ...ops.attention.softmax import Softmax
from ...ops.select import (
    ExactScratch,
    Frame,
    Lists,
    Range,
    Rotation,
    RowSketchScratch,
    SketchedKeys,
    Wanted,
    best_sketched_rows,
    products,
)
from ...ops.select.parts import (
    NO_LIMIT,
    LargestScratch,
    ListScratch,
    NearestScratch,
    largest_entries,
    list_entries,
    nearest_entries,
)
from ..attend.indexes.sketches import RERANKED
from ..attend.sparse import SEED
from ..store import Column, KVStore

NOTHING = np.float32(-1e30)
"""m where no token is read."""
_MOST_BLOCKS = 64 << 20
"""Bytes of the outputs of blocks, of rows that are read together."""
_MOST_KEPT = 4
_MOST_NAMED = 16
"""Questions whose answers are remembered: of so many heads at a time."""
K = TypeVar("K")
T = TypeVar("T")
Output = tuple[F32, F32]
"""Attention float32 (T, H, E), and its masses."""


class Sketches(NamedTuple):
    """The columns of a layer's sketches, bits and factors, and their frame."""

    bits: Column
    factors: Column
    frame: Frame


NO_QUERIES: F32 = np.empty((1, 0, 0), np.float32)
NO_SIGNATURES: U64 = np.empty((0, 0), np.uint64)
NO_LIMITS: U64 = np.empty(0, np.uint64)


class Query(NamedTuple):
    """What a choice is made by: the queries (1, H, E), and where it is made by signatures, those of
    the queries (J, G), and the column with those of the keys; or by sketches of keys."""

    q: F32 = NO_QUERIES
    signatures: U64 = NO_SIGNATURES
    column: Column | None = None
    sketches: Sketches | None = None

    @property
    def n_heads(self) -> int:
        """H."""
        return self.q.shape[1] or self.signatures.size

    @property
    def known(self) -> Hashable:
        """What the best of a layer's tokens depend on."""
        by = self.q if self.column is None else self.signatures
        return self.column, by.tobytes()


class Part:
    """Tokens first … stop - 1 of a store, for layers that hold all; first: a multiple of 1,024.
    Its methods run on the engine's thread."""

    def __init__(self, store: KVStore, first: int, stop: int) -> None:
        self.first, self.stop, self._store = first, stop, store
        self._layout, self._kv_heads = store.layout, store.n_kv_heads
        self._of_rows: dict[int, AttentionScratch] = {}
        self._gathered: dict[int, GatheredScratch] = {}
        self._exact: dict[int, ExactScratch] = {}
        self._largest: dict[int, LargestScratch] = {}
        self._nearest: dict[int, NearestScratch] = {}
        self._sketched: dict[int, RowSketchScratch] = {}
        self._lists = ListScratch(stop)
        none = np.empty((self._kv_heads, 0), np.uint32)
        self._room = Lists(none, np.empty(self._kv_heads, np.int64))
        self._named: dict[Hashable, U64] = {}

    def segments(self, layer: int) -> I64:
        """Addresses of the segments from `first` on."""
        return np.asarray(self._store.segments(layer))[self.first // SEGMENT :]

    def all_of(self, layer: int, q: F32, stop: int, softmax: Softmax) -> Output:
        """Attention of q (T, H, E) to tokens first … stop - 1, all of which each row sees."""
        (n_rows, n_heads, head_dim), j = q.shape, self._kv_heads
        segments, n = self.segments(layer), stop - self.first
        block_bytes = 4 * self._layout.padded * n_heads * (n_segments(n) + 1)
        most = max(1, min(n_rows, _MOST_BLOCKS // block_bytes))
        out, masses = np.empty_like(q), np.empty((n_rows, n_heads, 2), np.float32)
        for i in range(0, n_rows, most):
            rows = q[i : i + most]
            t, g = len(rows), n_heads // j
            # The kernel that masks nothing is for one token: rows become query heads of it.
            as_heads = np.ascontiguousarray(rows.reshape(t, j, g, head_dim).swapaxes(0, 1))
            as_heads = as_heads.reshape(1, t * n_heads, head_dim)
            scratch, result = self._rows_scratch(t * n_heads), np.empty_like(as_heads)
            attention(as_heads, segments, n - 1, result, softmax=softmax, scratch=scratch)
            by_group = j, t, g, -1
            out[i : i + most] = result.reshape(by_group).swapaxes(0, 1).reshape(rows.shape)
            of_rows = scratch.masses.reshape(by_group).swapaxes(0, 1)
            masses[i : i + most] = of_rows.reshape(t, n_heads, 2)
        return out, masses

    def _rows_scratch(self, n_heads: int) -> AttentionScratch:
        if n_heads not in self._of_rows:
            n_tokens = self.stop - self.first
            scratch = AttentionScratch(n_heads, self._kv_heads, self._layout, 1, n_tokens)
            _keep(self._of_rows, n_heads, scratch)
        return self._of_rows[n_heads]

    def best(self, layer: int, query: Query, first: int, last: int, k: int) -> U64:
        """The entries (H, n) of the k best of each query head among tokens first … last - 1, or of
        all if they are fewer (`ops.select.parts`). They are remembered for `chosen`."""
        question, entries = self._named_of(layer, query, (first, last), k)
        _keep(self._named, question, entries, _MOST_NAMED)
        return entries

    def _named_of(
        self, layer: int, query: Query, among: tuple[int, int], k: int
    ) -> tuple[Hashable, U64]:
        """What `best` gives, remembered or found, and forgotten, with what it depends on."""
        (first, last), k = among, min(k, among[1] - among[0])
        question = layer, first, last, k, query.known
        entries = self._named.pop(question, None)
        if entries is None:
            entries = np.empty((query.n_heads, k), np.uint64)
            find = self._find_largest if query.column is None else self._find_nearest
            find(layer, query, Range(first, last, last), entries)
        return question, entries

    def chosen(
        self, layer: int, query: Query, among: Range, k: int, limits: U64, softmax: Softmax
    ) -> tuple[F32, F32, I64]:
        """Attention to the k best of this part's tokens among those that compete, as far as their
        keys are up to limits (H,), or to all k (0,); and to those that do not compete. How many
        each KV head has read."""
        stop = min(among.stop, self.stop)
        first = min(max(among.first, self.first), stop)
        among = Range(first, max(first, min(among.last, stop)), stop)
        if first == among.last or query.sketches is None:
            lists = self._listed(layer, query, among, k, limits)
        else:
            lists = self._sketched_lists(layer, query.q, query.sketches, among, k)
        return *self._read(layer, query.q, lists, softmax), lists.counts.copy()

    def _listed(self, layer: int, query: Query, among: Range, k: int, limits: U64) -> Lists:
        """The lists of what competes and is up to the limits, and of what does not compete."""
        (first, last, stop), n_heads = among, query.q.shape[1]
        entries = np.empty((n_heads, 0), np.uint64)
        if first < last:
            _, entries = self._named_of(layer, query, (first, last), k)
        if not len(limits):
            limits = np.full(n_heads, NO_LIMIT)
        chosen = min(entries.shape[1] * n_heads // self._kv_heads, last - first)
        lists = self._room_for(first - self.first + chosen + stop - last)
        list_entries(entries, limits, self.first, among, SEED, lists, scratch=self._lists)
        return lists

    def _room_for(self, n_tokens: int) -> Lists:
        """Lists of up to n_tokens each, valid until the next call."""
        if self._room.tokens.shape[1] < max(1, n_tokens):
            shape = self._kv_heads, _rounded(n_tokens)
            self._room = Lists(np.empty(shape, np.uint32), np.empty(shape[0], np.int64))
        return self._room

    def _read(self, layer: int, q: F32, lists: Lists, softmax: Softmax) -> Output:
        """Attention of q (1, H, E) to listed tokens."""
        (tokens, counts), n_heads = lists, q.shape[1]
        out, read, room = np.empty_like(q), counts, tokens.shape[1]
        empty = [j for j, n in enumerate(counts.tolist()) if not n]
        if empty:  # their first token is read, and counts for nothing below
            tokens[empty, 0], read = self.first, np.maximum(counts, 1)
        scratch = self._gathered.get(n_heads)
        if scratch is None or scratch.room < room:
            scratch = GatheredScratch(n_heads, self._kv_heads, self._layout, room)
            _keep(self._gathered, n_heads, scratch)
        gathered_attention(
            q, tokens, read, np.asarray(self._store.segments(layer)), out,
            softmax=softmax, scratch=scratch,
        )  # fmt: skip
        masses = scratch.masses[None].copy()
        if empty:
            masses.reshape(self._kv_heads, -1, 2)[empty] = NOTHING, 1.0
        return out, masses

    def _find_largest(self, layer: int, query: Query, among: Range, entries: U64) -> None:
        """Find the largest q · key of each query head; entries (H, k)."""
        (n_heads, k), n_tokens = entries.shape, self.stop - self.first
        exact, scratch = self._exact.get(n_heads), self._largest.get(n_heads)
        if exact is None:
            exact = ExactScratch(n_heads, self._kv_heads, n_tokens, 1, self._layout)
            _keep(self._exact, n_heads, exact)
        if scratch is None or scratch.k < k:
            scratch = LargestScratch(n_heads, self._kv_heads, n_tokens, _rounded(k))
            _keep(self._largest, n_heads, scratch)
        products(
            query.q, self.segments(layer), among.last - self.first, scratch.scores, scratch=exact
        )
        largest_entries(among, self.first, Wanted(k, k, SEED), entries, scratch=scratch)

    def _find_nearest(self, layer: int, query: Query, among: Range, entries: U64) -> None:
        """Find the nearest signatures of each query head; entries (H, k)."""
        (n_heads, k), column = entries.shape, query.column
        assert column is not None
        scratch = self._nearest.get(n_heads)
        if scratch is None or scratch.k < k:
            scratch = NearestScratch(n_heads, self._kv_heads, self.stop, _rounded(k))
            _keep(self._nearest, n_heads, scratch)
        items, bits = np.asarray(column.segments(layer)), 8 * column.item_bytes
        wanted = Wanted(k, k, SEED)
        nearest_entries(query.signatures, items, bits, among, wanted, entries, scratch=scratch)

    def _sketched_lists(
        self, layer: int, q: F32, sketches: Sketches, among: Range, k: int
    ) -> Lists:
        """The lists of the k largest q · key of each query head, among the best estimates of what
        competes, as `topk` chooses them, and of what does not compete; q (1, H, E)."""
        (first, last, stop), n_heads = among, q.shape[1]
        k = min(k, last - first)
        n = min(RERANKED * k, last - first)
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
        most, wanted = min(k * n_heads // self._kv_heads, last - first), Wanted(k, n, SEED)
        shape = self._kv_heads, max(1, most)
        best = Lists(np.empty(shape, np.uint32), np.empty(shape[0], np.int64))
        best_sketched_rows(
            q, keys, Range(first, last, last), wanted, best.tokens[None], best.counts[None],
            scratch=scratch,
        )  # fmt: skip
        lists = self._room_for(first - self.first + most + stop - last)
        before, after = np.arange(self.first, first), np.arange(last, stop)
        for j, (tokens, n_best) in enumerate(zip(*best)):
            row = np.concatenate([before, tokens[:n_best], after])
            lists.tokens[j, : len(row)], lists.counts[j] = row, len(row)
        return lists

    @cached_property
    def rotation(self) -> Rotation:
        """By which all sketches are rotated."""
        return Rotation.random(self._layout.head_dim, SEED)


def _rounded(k: int) -> int:
    """Room for k candidates, and a few more, as a context grows."""
    return n_segments(max(1, k)) * SEGMENT


def _keep(kept: dict[K, T], key: K, value: T, most: int = _MOST_KEPT) -> None:
    """Keep something beside few others, the oldest of which goes: who asks may name anything."""
    kept.pop(key, None)
    if len(kept) == most:
        del kept[next(iter(kept))]
    kept[key] = value
