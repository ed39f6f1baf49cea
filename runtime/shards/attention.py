"""The head's attention: it asks all shards, reads what it holds itself meanwhile, and merges.

    out = sum_p w_p out_p / sum_p w_p,   w_p = total_p exp(m_p - max m)

over the parts p of a context, each with its output and masses (`part`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

import numpy as np

from ...ops.arrays import F32, F64, U64
from ...ops.attention.layout import SEGMENT, n_segments
from ...ops.attention.softmax import Softmax
from ...ops.device import Recorded
from ...ops.select import Lists, Range
from ...ops.select.parts import LimitScratch, ListScratch, key_limits, list_entries
from ..attend.base import BoundAttend, LayerView
from ..attend.full import FullAttention
from ..attend.hash import SignatureIndex
from ..attend.indexes import FlatIndex, SketchIndex
from ..attend.sparse import SEED, SparseAttention
from .errors import ShardError
from .frames import MOST_ROWS, Arrays, Kind, text_array
from .links import Expected, Link, Links
from .part import NO_LIMITS, Output, Part, Query, Sketches
from .shares import Shares, Span


def merge(parts: Sequence[Output], out: F32, sinks: F32 | None) -> None:
    """out (T, H, E): attention to the tokens of all parts, and to the sinks of a layer."""
    masses: F64 = np.array([masses for _, masses in parts], np.float64)
    most = np.maximum.reduce(masses[..., 0])
    weights = masses[..., 1] * np.exp(masses[..., 0] - most)
    total = np.add.reduce(weights)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64) - most)
    weights /= total
    out[:] = sum(weight[..., None] * part for weight, (part, _) in zip(weights, parts))


class ShardedFull(BoundAttend):
    """`full` in one context: layers with a window, and the tokens after those of the shards, are
    read here.

    called: the layers without a window; of a generated token, the others are recorded.
    """

    records = True

    def __init__(self, links: Links, part: Part, called: frozenset[int]) -> None:
        self._links, self._part, self.called = links, part, called
        self._full = FullAttention()
        self._scorings: dict[int, tuple[Softmax, F64]] = {}

    def scoring(self, layer: LayerView) -> tuple[Softmax, F64]:
        """How the layer's scores become weights, without sinks, which are counted once; and the
        same for a shard."""
        if layer.number not in self._scorings:
            softmax = layer.softmax._replace(sinks=None)
            numbers = np.array([layer.index, softmax.scale, softmax.softcap], np.float64)
            self._scorings[layer.number] = softmax, numbers
        return self._scorings[layer.number]

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
        softmax, numbers = self.scoring(layer)
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
        self._limit_scratch: LimitScratch | None = None
        self._shares = Shares()
        index = self._index
        self._name = text_array(index.encoder.name if isinstance(index, SignatureIndex) else "")
        """The name of the column of signatures; no bytes without one."""
        self._q = np.zeros((1, self._config.n_heads, self._config.head_dim), np.float32)
        self._signing: dict[int, Recorded] = {}
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
            if self._each:
                n = among.last - among.first
                shares = [-(-k * (last - first) // n) for first, last in self._spans(among)]
            else:
                shares, limits = self._limits_of(layer, query, among, k)
            chose = time.perf_counter()
            parts, n_read = self._parts_of(layer, query, among, shares, limits)
        merge(parts, out, layer.softmax.sinks)
        index_bytes = self._index.bytes_read(layer.index, among, 0)
        self._count([(layer.number, among, index_bytes, n_read)])
        reads.index_seconds += chose - began
        reads.attention_seconds += time.perf_counter() - chose

    def _query(self, layer: LayerView, q: F32) -> Query:
        index = self._index
        if isinstance(index, SignatureIndex):
            return Query(q, self._sign(index, layer, q), index.column)
        if isinstance(index, SketchIndex):
            bits, factors = index.columns(layer)
            return Query(q, sketches=Sketches(bits, factors, index.frame(layer)))
        return Query(q)

    def _sign(self, index: SignatureIndex, layer: LayerView, q: F32) -> U64:
        """The signatures of q, valid until the next call. Their launches are recorded, of one for
        each KV head 50 µs, which shards would wait for."""

        def sign() -> None:
            self._signatures = index.sign(layer, self._q)

        if layer.number not in self._signing:
            self._signing[layer.number] = layer.device.record(sign)
        self._q[:] = q
        self._signing[layer.number].run()
        return self._signatures

    def _spans(self, among: Range) -> list[Span]:
        """The tokens of each process that compete, those of this one last."""
        parts = [(link.facts.first, link.facts.stop) for link in self._links]
        spans = []
        for first, stop in (*parts, (self._part.first, self._part.stop)):
            begin = min(max(among.first, first), among.last)
            spans.append((begin, max(begin, min(among.last, stop))))
        return spans

    def _parts_of(
        self, layer: LayerView, query: Query, among: Range, shares: list[int], limits: U64
    ) -> tuple[list[Output], int]:
        """The part of each process: of its tokens that compete those up to the limits among so many
        best or, without, all of these. And how many tokens were read."""
        softmax, numbers = self._full.scoring(layer)
        for link, n in zip(self._links, shares):
            choice = np.array([*among[:2], max(1, n)], np.int64)
            link.send(*self._question(query, [choice, numbers, query.q], limits))
        own = max(1, shares[-1])
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

    def _limits_of(
        self, layer: LayerView, query: Query, among: Range, k: int
    ) -> tuple[list[int], U64]:
        """The keys (H,) up to which the tokens of all processes are the best of all, after how many
        each has named. Where all that one has named are among them, it is asked for all it has."""
        spans = self._spans(among)
        asked, most = self._shares.asked(layer.number, spans, k)
        named = self._named(layer, query, spans, asked)
        limits, given = self._key_limits(named, k)
        again = [n if one == few < n else 0 for n, one, few in zip(most, given, asked)]
        if any(again):
            more = self._named(layer, query, spans, again)
            named = [x if n else one for n, x, one in zip(again, more, named)]
            asked = [n or one for n, one in zip(again, asked)]
            limits, given = self._key_limits(named, k)
        self._shares.gave(layer.number, given)
        if self.observer is not None:
            self._observe(layer.number, np.concatenate(named, 1), limits, among)
        return asked, limits

    def _observe(self, layer: int, entries: U64, limits: U64, among: Range) -> None:
        """Tell what was chosen."""
        assert self.observer is not None
        room, j = among.stop, self._config.n_kv_heads
        lists = Lists(np.zeros((j, room), np.uint32), np.empty(j, np.int64))
        list_entries(entries, limits, 0, among, SEED, lists, scratch=ListScratch(room))
        self.observer.add(layer, among.stop, *lists)

    def _key_limits(self, named: list[U64], k: int) -> tuple[U64, list[int]]:
        """The limits, and how many tokens up to them each process has named, to one head."""
        scratch, n = self._limit_scratch, sum(entries.shape[1] for entries in named)
        if scratch is None or scratch.room < n:
            scratch = LimitScratch(len(named[0]), len(named), n_segments(n) * SEGMENT)
            self._limit_scratch = scratch
        limits, within = key_limits(named, k, SEED, scratch=scratch)
        return limits, np.maximum.reduce(within, 1).tolist()

    def _named(
        self, layer: LayerView, query: Query, spans: list[Span], wanted: list[int]
    ) -> list[U64]:
        """The entries (H, n) of each process's best tokens, as many as are wanted of it."""
        kind: Kind = Kind.LARGEST
        arrays: Arrays = [query.q]
        if query.column is not None:
            kind, arrays = Kind.NEAREST, [query.signatures, self._name]
        for link, span, n in zip(self._links, spans, wanted):
            if n:
                link.send(kind, [np.array([layer.index, *span, n], np.int64), *arrays])
        own, none = wanted[-1], np.empty((query.n_heads, 0), np.uint64)
        here = self._part.best(layer.index, query, *spans[-1], own) if own else none
        named: list[U64] = []
        for link, n in zip(self._links, wanted):
            named += link.receive((np.uint64, (query.n_heads, n))) if n else [none]
        return [*named, here]
