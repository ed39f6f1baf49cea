"""Attention to some of a pack's tokens, in the process that has them: the head's, or a shard's.

Outputs come with their masses, float32 (T, H, 2): m, which was subtracted from the scores of each
row and head, and the total of exp(score - m). With these, `merge` joins those of all processes.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from ...ops.arrays import F32, I64, U32, U64
from ...ops.attention.api import AttentionScratch, attention
from ...ops.attention.decode.gathered import GatheredScratch, gathered_attention
from ...ops.attention.layout import SEGMENT, n_segments
from ...ops.attention.softmax import Softmax
from ...ops.select import (
    ExactScratch,
    Frame,
    Range,
    Rotation,
    RowSignatureScratch,
    RowSketchScratch,
    SketchedKeys,
    Wanted,
    best_sketched_rows,
    nearest_rows,
    products,
)
from ..attend.indexes.sketches import RERANKED
from ..attend.sparse import SEED
from ..store import Column, KVStore
from .choosing import (
    best_entries,
    costs_of_products,
    costs_of_signatures,
    lists_of,
    outside,
    part_of,
)

NOTHING = np.float32(-1e30)
"""m where no token is read."""
_MOST_BLOCKS = 64 << 20
"""Bytes of the outputs of blocks, of rows that are read together."""
_MOST_SCRATCHES = 4
S = TypeVar("S")
Output = tuple[F32, F32]
"""Attention float32 (T, H, E), and its masses."""


class Sketches(NamedTuple):
    """The columns of a layer's sketches, bits and factors, and their frame."""

    bits: Column
    factors: Column
    frame: Frame


NO_SIGNATURES: U64 = np.empty((0, 0), np.uint64)


class Query(NamedTuple):
    """What a choice is made by: the queries (1, H, E), and where it is made by signatures, those of
    the queries (J, G), and the column with those of the keys; or by sketches of keys."""

    q: F32
    signatures: U64 = NO_SIGNATURES
    column: Column | None = None
    sketches: Sketches | None = None


class Part:
    """Tokens first … n_ctx - 1 of a store, for layers that hold all; first: a multiple of 1,024.
    Its methods run on the engine's thread."""

    def __init__(self, store: KVStore, first: int, n_ctx: int) -> None:
        self.first, self.n_ctx, self._store = first, n_ctx, store
        self._layout, self._kv_heads = store.layout, store.n_kv_heads
        self._of_rows: dict[int, AttentionScratch] = {}
        self._gathered: dict[int, GatheredScratch] = {}
        self._exact: dict[int, ExactScratch] = {}
        self._signed: dict[int, RowSignatureScratch] = {}
        self._sketched: dict[int, RowSketchScratch] = {}

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
            n_tokens = self.n_ctx - self.first
            scratch = AttentionScratch(n_heads, self._kv_heads, self._layout, 1, n_tokens)
            _keep(self._of_rows, n_heads, scratch)
        return self._of_rows[n_heads]

    def listed(self, layer: int, q: F32, lists: tuple[U32, I64], softmax: Softmax) -> Output:
        """Attention of q (1, H, E) to listed tokens; lists: the ascending tokens of all KV heads in
        one array, and how many each has (J,)."""
        (tokens, counts), n_heads = lists, q.shape[1]
        out, masses = np.zeros_like(q), np.empty((1, n_heads, 2), np.float32)
        room = int(counts.max())
        if room:
            table = np.full((self._kv_heads, room), self.first, np.uint32)
            table[np.arange(room) < counts[:, None]] = tokens
            scratch = self._gathered.get(n_heads)
            if scratch is None or scratch.room < room:
                most = n_segments(room) * SEGMENT
                scratch = GatheredScratch(n_heads, self._kv_heads, self._layout, most)
                _keep(self._gathered, n_heads, scratch)
            # Of an empty list, one token is read; it counts for nothing below.
            gathered_attention(
                q, table, np.maximum(counts, 1), np.asarray(self._store.segments(layer)), out,
                softmax=softmax, scratch=scratch,
            )  # fmt: skip
            masses[0] = scratch.masses
        masses[0, np.repeat(counts == 0, n_heads // self._kv_heads)] = NOTHING, 1.0
        return out, masses

    def best(self, layer: int, query: Query, first: int, last: int, k: int) -> U64:
        """The entries (H, n) of the k best of each query head among tokens first … last - 1, or of
        all if they are fewer."""
        if query.column is None:
            return self.largest(layer, query.q, first, last, k)
        return self.nearest(layer, query.signatures, query.column, (first, last), k)

    def chosen(
        self, layer: int, query: Query, among: Range, k: int, softmax: Softmax
    ) -> tuple[F32, F32, I64]:
        """Attention to the k best of this part's tokens among those that compete, and to those that
        do not; how many each KV head has read."""
        stop = min(among.stop, self.n_ctx)
        first, last = max(among.first, self.first), min(among.last, stop)
        always = outside(among, self.first, stop)
        if first >= last:
            lists = [always] * self._kv_heads
        elif query.sketches is not None:
            found = self.sketched(layer, query.q, query.sketches, (first, last), k)
            lists = [np.union1d(always, tokens) for tokens in found]
        else:
            entries = self.best(layer, query, first, last, k)
            lists = lists_of(entries, self._kv_heads, k, always)
        read = part_of(lists, self.first, stop)
        return *self.listed(layer, query.q, read, softmax), read[1]

    def largest(self, layer: int, q: F32, first: int, last: int, k: int) -> U64:
        """The entries (H, n) of the k largest q · key of each query head among tokens first … last
        - 1, or of all if they are fewer; q (1, H, E)."""
        n_heads, n = q.shape[1], last - self.first
        k = min(k, last - first)
        scratch = self._exact.get(n_heads)
        if scratch is None:
            n_tokens = self.n_ctx - self.first
            scratch = ExactScratch(n_heads, self._kv_heads, n_tokens, 1, self._layout)
            _keep(self._exact, n_heads, scratch)
        scores = np.empty((n_heads, n_segments(n) * SEGMENT), np.float32)
        products(q, self.segments(layer), n, scores, scratch=scratch)
        entries = np.empty((n_heads, k), np.uint64)
        for row, of_head in zip(entries, scores[:, first - self.first : n]):
            # Few enough to be compared by their hashes, too: those that reach the k-th.
            least = np.partition(of_head, len(of_head) - k)[len(of_head) - k]
            near = np.flatnonzero(of_head >= least)
            positions = (first + near).astype(np.uint32)
            row[:] = best_entries(costs_of_products(of_head[near]), positions, k)
        return entries

    def sketched(
        self, layer: int, q: F32, sketches: Sketches, among: tuple[int, int], k: int
    ) -> list[U32]:
        """For each KV head the k largest q · key of its query heads, among the best estimates of
        tokens first … last - 1 (`among`), as `topk` chooses them; q (1, H, E)."""
        (first, last), n_heads = among, q.shape[1]
        k = min(k, last - first)
        n = min(RERANKED * k, last - first)
        scratch = self._sketched.get(n_heads)
        if scratch is None or scratch.k < n:
            room = n_segments(n) * SEGMENT
            scratch = RowSketchScratch(n_heads, self._kv_heads, self.n_ctx, room, self._layout)
            _keep(self._sketched, n_heads, scratch)
        keys = SketchedKeys(
            np.asarray(self._store.segments(layer)),
            np.asarray(sketches.bits.segments(layer)),
            np.asarray(sketches.factors.segments(layer)),
            self.rotation,
            sketches.frame,
        )
        most = min(k * n_heads // self._kv_heads, last - first)
        lists, counts = (
            np.empty((1, self._kv_heads, most), np.uint32),
            np.empty((1, self._kv_heads), np.int64),
        )
        wanted = Wanted(k, n, SEED)
        best_sketched_rows(
            q, keys, Range(first, last, last), wanted, lists, counts, scratch=scratch
        )
        return [row[:n] for row, n in zip(lists[0], counts[0])]

    @cached_property
    def rotation(self) -> Rotation:
        """By which all sketches are rotated."""
        return Rotation.random(self._layout.head_dim, SEED)

    def nearest(
        self, layer: int, queries: U64, column: Column, among: tuple[int, int], k: int
    ) -> U64:
        """The entries (H, n) of the k nearest signatures of each query head among tokens first …
        last - 1 (`among`), or of all if they are fewer; queries (J, G)."""
        (first, last), (j, g) = among, queries.shape
        k = min(k, last - first)
        scratch = self._signed.get(j * g)
        if scratch is None or scratch.k < k:
            room = n_segments(k) * SEGMENT
            scratch = RowSignatureScratch(j * g, j, self.n_ctx, room)
            _keep(self._signed, j * g, scratch)
        items, size = np.asarray(column.segments(layer)), column.item_bytes
        lists = np.empty((1, j, min(k * g, last - first)), np.uint32)
        counts = np.empty((1, j), np.int64)
        among_, wanted = Range(first, last, last), Wanted(k, k, SEED)
        nearest_rows(queries[None], items, 8 * size, among_, wanted, lists, counts, scratch=scratch)
        entries = np.empty((j, g, k), np.uint64)
        for head, (row, n) in enumerate(zip(lists[0], counts[0])):
            positions = row[:n]
            signatures = _signatures(items, head, positions, size)
            costs = costs_of_signatures(queries[head], signatures, positions, 8 * size)
            for to, of_head in zip(entries[head], costs):
                to[:] = best_entries(of_head, positions, k)
        return entries.reshape(j * g, k)


def _keep(scratches: dict[int, S], n_heads: int, scratch: S) -> None:
    """Keep the scratch for so many query heads beside few others: who asks may name any number."""
    if n_heads not in scratches and len(scratches) == _MOST_SCRATCHES:
        scratches.clear()
    scratches[n_heads] = scratch


class _Memory:
    """Bytes from an address on, for NumPy."""

    def __init__(self, address: int, n: int, dtype: str) -> None:
        self.__array_interface__ = {
            "data": (address, True), "shape": (n,), "typestr": dtype, "version": 3
        }  # fmt: skip


def _signatures(items: I64, head: int, positions: U32, item_bytes: int) -> U64:
    """The signatures of tokens of a KV head, in columns whose segments are at `items`."""
    segment, token = np.divmod(positions.astype(np.int64), SEGMENT)
    addresses = items[segment] + item_bytes * (SEGMENT * head + token)
    # One view from the lowest to the highest: of what is between, nothing is touched.
    base = int(addresses.min())
    offsets = (addresses - base) // item_bytes
    memory = _Memory(base, int(offsets.max()) + 1, f"<u{item_bytes}")
    signatures: U64 = np.asarray(memory)[offsets].astype(np.uint64)
    return signatures
