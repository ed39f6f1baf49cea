"""The head's attention: it asks all shards, reads what it holds itself meanwhile, and merges.

    out = sum_p w_p out_p / sum_p w_p,   w_p = total_p exp(m_p - max m)

over the parts p of a context, each with its output and masses (`part`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

import numpy as np

from ...ops.arrays import F32, F64, U8, U64
from ...ops.attention.layout import SEGMENT, n_segments
from ...ops.attention.softmax import Softmax
from ...ops.select import Lists, Range
from ...ops.select.parts import ListScratch, key_limits, list_entries
from ..attend.base import BoundAttend, LayerView
from ..attend.full import FullAttention
from ..attend.hash import SignatureIndex
from ..attend.indexes import FlatIndex, SketchIndex
from ..attend.sparse import SEED, SparseAttention
from .errors import ShardError
from .frames import MOST_ROWS, Arrays, Kind, text_array
from .links import Expected, Link, Links
from .part import NO_LIMITS, Output, Part, Query, Sketches


def merge(parts: Sequence[Output], out: F32, sinks: F32 | None) -> None:
    """out (T, H, E): attention to the tokens of all parts, and to the sinks of a layer."""
    maxima: F64 = np.stack([masses[..., 0] for _, masses in parts]).astype(np.float64)
    totals: F64 = np.stack([masses[..., 1] for _, masses in parts]).astype(np.float64)
    most = maxima.max(0)
    weights = totals * np.exp(maxima - most)
    total = weights.sum(0)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64) - most)
    weights /= total
    out[:] = sum(weight[..., None] * part for weight, (part, _) in zip(weights, parts))


def _scoring(layer: LayerView) -> tuple[Softmax, F64]:
    """How the layer's scores become weights, without sinks, which are counted once; and the same
    for a shard."""
    softmax = layer.softmax._replace(sinks=None)
    return softmax, np.array([layer.index, softmax.scale, softmax.softcap], np.float64)


class ShardedFull(BoundAttend):
    """`full` in one context: layers with a window, and the tokens after those of the shards, are
    read here.

    called: the layers without a window; of a generated token, the others are recorded.
    """

    records = True

    def __init__(self, links: Links, part: Part, called: frozenset[int]) -> None:
        self._links, self._part, self.called = links, part, called
        self._full = FullAttention()

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        return None if prompt or n_tokens != 1 else ()

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        if layer.config.window is not None:
            self._full(layer, q, start, out)
            return
        self.check(int(start))
        for i in range(0, len(q), MOST_ROWS):
            rows = slice(i, i + MOST_ROWS)
            self._attend(layer, q[rows], int(start) + i, out[rows])

    def check(self, start: int) -> None:
        """Raise `ShardError` for a context that was cut into the tokens of its shards."""
        for link in self._links:
            if link.facts.stop > start:
                raise ShardError(
                    link.address,
                    f"it holds tokens up to {link.facts.stop:,}, and the context was cut to "
                    f"{start:,}: ask shards of fewer segments",
                )

    def _attend(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        softmax, numbers = _scoring(layer)
        with self._links.asking():
            for link in self._links:
                link.send(Kind.ROWS, [numbers, q])
            parts = [self._here(layer, q, start, softmax)]
            for link in self._links:
                parts.append(_output(link, q.shape))
        merge(parts, out, layer.softmax.sinks)

    def _here(self, layer: LayerView, q: F32, start: int, softmax: Softmax) -> Output:
        """Attention to the tokens of this process, those from `start` on masked."""
        if len(q) == 1:
            return self._part.all_of(layer.index, q, start + 1, softmax)
        from ...ops.attention.api import attention_rows

        out, masses = np.empty_like(q), np.ones((*q.shape[:2], 2), np.float32)
        log_sums = np.empty(q.shape[:2], np.float32)
        attention_rows(
            q, self._part.segments(layer.index), start - self._part.first, out,
            softmax=softmax, log_sums=log_sums, scratch=layer.scratch,
        )  # fmt: skip
        masses[..., 0] = log_sums
        return out, masses


def _output(link: Link, shape: tuple[int, ...]) -> Output:
    """The answer of a shard to rows of queries (T, H, E)."""
    out, masses = link.receive(*_shapes(shape))
    return out, masses


def _shapes(shape: tuple[int, ...]) -> tuple[Expected, Expected]:
    """Types and shapes of an output."""
    return (np.float32, shape), (np.float32, (*shape[:2], 2))


class ShardedChoice(SparseAttention):
    """A method that chooses, in one context: each process names the best of its own tokens, and
    reads those of them that are up to the limit of all. So the tokens are those of one context."""

    _full: ShardedFull  # type: ignore[assignment]
    _index: SignatureIndex | SketchIndex | FlatIndex

    def spread(self, full: ShardedFull, links: Links, part: Part, each: bool) -> ShardedChoice:
        """The same over the shards' tokens, too. each: each process reads its part of the tokens
        that are wanted, the best of its own."""
        self._links, self._part, self._each = links, part, each
        self._scratch_of_all: ListScratch | None = None
        self._full, self.records, self.called = full, True, full.called
        return self

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        self._start, self._prompt = start, prompt
        return self._full.expect(start, n_tokens, prompt)

    def done(self, n_tokens: int) -> None:
        # Layers with a window may have been recorded: their calls count nothing.
        self._index.indexed(self._start + n_tokens)
        for reads in self.reads:
            if reads.layer not in self.called and not self._prompt:
                reads.full_steps += n_tokens

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        if layer.number in self.called:
            super().__call__(layer, q, start, out)
        else:
            self._full(layer, q, start, out)

    def _attend(self, layer: LayerView, q: F32, among: Range | None, stored: int, out: F32) -> None:
        reads = self.reads[layer.number]
        if among is None:
            self._full(layer, q, stored - 1, out)
            reads.full_steps += 1
            return
        self._full.check(stored - 1)
        k = self._layers.takes(layer.number, stored)
        query, limits, began = self._query(layer, q), NO_LIMITS, time.perf_counter()
        with self._links.asking():
            if not self._each:
                limits = self._limits_of(layer, query, among, k)
            chose = time.perf_counter()
            parts, n_read = self._parts_of(layer, query, among, k, limits)
        merge(parts, out, layer.softmax.sinks)
        index_bytes = self._index.bytes_read(layer.index, among, 0)
        self._count([(layer.number, among, index_bytes, n_read)])
        reads.index_seconds += chose - began
        reads.attention_seconds += time.perf_counter() - chose

    def _query(self, layer: LayerView, q: F32) -> Query:
        index = self._index
        if isinstance(index, SignatureIndex):
            return Query(q, index.sign(layer, q), index.column)
        if isinstance(index, SketchIndex):
            bits, factors = index.columns(layer)
            return Query(q, sketches=Sketches(bits, factors, index.frame(layer)))
        return Query(q)

    @property
    def _name(self) -> U8:
        """The name of the column of signatures; no bytes without one."""
        index = self._index
        return text_array(index.encoder.name if isinstance(index, SignatureIndex) else "")

    def _parts_of(
        self, layer: LayerView, query: Query, among: Range, k: int, limits: U64
    ) -> tuple[list[Output], int]:
        """The part of each process: of its tokens that compete those up to the limits or, without,
        its share by how many they are. And how many tokens were read."""
        softmax, numbers = _scoring(layer)

        def most(first: int, stop: int) -> int:
            """Of the tokens that compete, how many a process reads."""
            if len(limits):
                return k
            n = max(0, min(stop, among.last) - max(first, among.first))
            return max(1, -(-k * n // (among.last - among.first)))

        for link in self._links:
            facts = link.facts
            choice = np.array([*among[:2], most(facts.first, facts.stop)], np.int64)
            link.send(*self._question(query, [choice, numbers, query.q], limits))
        own = most(self._part.first, among.stop)
        here = self._part.chosen(layer.index, query, among, own, limits, softmax)
        parts, n_read = [here[:2]], int(here[2].sum())
        for link in self._links:
            counts_of = np.int64, (self._config.n_kv_heads,)
            out, masses, counts = link.receive(*_shapes(query.q.shape), counts_of)
            parts.append((out, masses))
            n_read += int(counts.sum())
        return parts, n_read

    def _question(self, query: Query, arrays: Arrays, limits: U64) -> tuple[Kind, Arrays]:
        """What a shard is asked that takes its part; arrays: what all questions have."""
        if query.sketches is None:
            return Kind.CHOSEN, [*arrays, limits, query.signatures, self._name]
        return Kind.SKETCHED, arrays  # in the frame of the pack, not in that of this context

    def _limits_of(self, layer: LayerView, query: Query, among: Range, k: int) -> U64:
        """The keys (H,) up to which the tokens of all processes are the best of all."""
        entries, limits = self._best(layer, query, among, k), np.empty(query.q.shape[1], np.uint64)
        scratch = self._scratch_of_all
        if scratch is None or scratch.room < entries.shape[1]:
            room = n_segments(entries.shape[1]) * SEGMENT
            self._scratch_of_all = scratch = ListScratch(self._part.n_ctx, room)
        key_limits(entries, k, SEED, limits, scratch=scratch)
        if self.observer is not None:
            room, j = among.stop, self._config.n_kv_heads
            lists = Lists(np.zeros((j, room), np.uint32), np.empty(j, np.int64))
            list_entries(entries, limits, 0, among, SEED, lists, scratch=scratch)
            self.observer.add(layer.number, among.stop, *lists)
        return limits

    def _best(self, layer: LayerView, query: Query, among: Range, k: int) -> U64:
        """The entries of the k best of each process, (H, n) in all."""
        asked = []
        kind: Kind = Kind.LARGEST
        arrays: Arrays = [query.q]
        if query.column is not None:
            kind, arrays = Kind.NEAREST, [query.signatures, self._name]
        for link in self._links:
            first, last = max(among.first, link.facts.first), min(among.last, link.facts.stop)
            if first < last:
                numbers = np.array([layer.index, first, last, k], np.int64)
                link.send(kind, [numbers, *arrays])
                asked.append((link, min(k, last - first)))
        entries, first = [], max(among.first, self._part.first)
        if first < among.last:
            entries = [self._part.best(layer.index, query, first, among.last, k)]
        for link, n in asked:
            entries += link.receive((np.uint64, (query.q.shape[1], n)))
        return np.concatenate(entries, 1)
