"""The head's choices: it asks all shards for their best tokens, and then for attention to those of
them that are among the best of all.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....ops.arrays import F32, U64
from ....ops.attention.layout import SEGMENT, n_segments
from ....ops.device import Recorded
from ....ops.select import Lists, Range
from ....ops.select.parts import LimitScratch, ListScratch, key_limits, list_entries
from ...attend.base import LayerView
from ...attend.hash import SignatureIndex
from ...attend.indexes import FlatIndex, SketchIndex
from ...attend.sparse import SEED, SparseAttention
from ..frames import Arrays, Kind, QuestionTemplate, text_array
from ..links import Links
from ..part import NO_LIMITS, Query, Sketches
from ..work import BestSearch, ListAttention
from .full import Outputs, ShardedFull, shapes_of
from .local import LocalPart
from .shares import Shares, Span

_U64, _I64 = np.dtype(np.uint64), np.dtype(np.int64)
_CHOICE = Struct("<3q")
_NO_CHOICE = np.zeros(3, np.int64)
"""Of a question, before it is filled."""


class ShardedChoice(SparseAttention):
    """A method that chooses, in one context: each process names the best of its own tokens, and
    reads those of them that are up to the limit of all. So the tokens are those of one context."""

    _full: ShardedFull  # type: ignore[assignment]
    _index: SignatureIndex | SketchIndex | FlatIndex

    def attach(
        self, full: ShardedFull, links: Links, local: LocalPart, each: bool
    ) -> ShardedChoice:
        """The same over the shards' tokens, too. each: each process reads its part of the tokens
        that are wanted, the best of its own."""
        self._links, self._local, self._each = links, local, each
        self._limit_scratch: LimitScratch | None = None
        self._best: BestSearch | None = None
        """The tokens that this process has named of a layer."""
        self._shares = Shares()
        index = self._index
        self._name = text_array(index.encoder.name if isinstance(index, SignatureIndex) else "")
        """The name of the column of signatures; no bytes without one."""
        self._q = np.zeros((1, self._config.n_heads, self._config.head_dim), np.float32)
        self._signing: dict[int, Recorded] = {}
        self._templates: dict[tuple[int, Kind], QuestionTemplate] = {}
        self._counts = Struct(f"<{self._config.n_kv_heads}q")
        self._full, self.records, self.unrecorded = full, True, full.unrecorded
        return self

    def expect(self, start: int, n_tokens: int, prompt: bool) -> Hashable | None:
        self._start, self._prompt = start, prompt
        return self._full.expect(start, n_tokens, prompt)

    def end(self, n_tokens: int) -> None:
        # Layers with a window may have been recorded: their calls count nothing.
        self._index.mark_indexed(self._start + n_tokens)
        for reads in self.reads:
            if reads.layer not in self.unrecorded and not self._prompt:
                reads.full_steps += n_tokens

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        if layer.number in self.unrecorded:
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
        self._q[:] = q
        query, limits, began = self._query(layer, self._q), NO_LIMITS, time.perf_counter()
        self._best = None
        with self._links.exchange():
            if self._each:
                n = among.last - among.first
                shares = [-(-k * (last - first) // n) for first, last in self._spans(among)]
            else:
                shares, limits = self._limits_of(layer, query, among, k)
            chose = time.perf_counter()
            outputs, n_read = self._outputs_of(layer, query, among, shares, limits)
        outputs.merge(layer, out)
        index_bytes = self._index.bytes_read(layer.index, among, 0)
        self._count([(layer.number, among, index_bytes, n_read)])
        reads.index_seconds += chose - began
        reads.attention_seconds += time.perf_counter() - chose

    def _query(self, layer: LayerView, q: F32) -> Query:
        index = self._index
        if isinstance(index, SignatureIndex):
            return Query(q, self._sign(index, layer), index.column)
        if isinstance(index, SketchIndex):
            bits, factors = index.columns(layer)
            return Query(q, sketches=Sketches(bits, factors, index.frame(layer)))
        return Query(q)

    def _sign(self, index: SignatureIndex, layer: LayerView) -> U64:
        """The signatures of `_q`, valid until the next call. Their launches are recorded, of one
        for each KV head 50 µs, which shards would wait for."""

        def sign() -> None:
            self._signatures = index.sign(layer, self._q)

        if layer.number not in self._signing:
            self._signing[layer.number] = layer.device.record(sign)
        self._signing[layer.number].run()
        return self._signatures

    def _spans(self, among: Range) -> list[Span]:
        """The tokens of each process that compete, those of this one last."""
        parts = [(link.facts.first, link.facts.stop) for link in self._links]
        spans = []
        for first, stop in (*parts, (self._local.part.first, self._local.part.stop)):
            begin = min(max(among.first, first), stop)
            spans.append((begin, max(begin, min(among.last, stop))))
        return spans

    def _outputs_of(
        self, layer: LayerView, query: Query, among: Range, shares: list[int], limits: U64
    ) -> tuple[Outputs, int]:
        """The output of each process, of its tokens that compete those up to the limits among so
        many best or, without, all of these. And how many tokens were read."""
        template, spans, counts = (
            self._question(layer, query, limits),
            self._spans(among),
            self._counts,
        )
        for link, span, n in zip(self._links, spans, shares):
            template.fill(1, _CHOICE.pack(*span, n))
            link.ask(template.message())
        here = self._attend_locally(layer, query, Range(*spans[-1], among.stop), shares[-1], limits)
        outputs, n_read = self._full.outputs(query.q), int(here.lists.counts.sum())
        outputs.set_local((here.out, here.masses))
        shapes = *shapes_of(query.q.shape), (_I64, (self._config.n_kv_heads,))
        for part, link in enumerate(self._links, 1):
            answer = link.answer(*shapes).view
            outputs.set(part, answer)
            n_read += sum(counts.unpack(answer[-counts.size :]))
        return outputs, n_read

    def _question(self, layer: LayerView, query: Query, limits: U64) -> QuestionTemplate:
        """What a shard is asked that takes its part, but for its tokens and how many."""
        _, numbers = self._full.scoring(layer)
        kind: Kind = Kind.SKETCHED
        arrays: list[NDArray[Any]] = [numbers, _NO_CHOICE, query.q]
        if query.sketches is None:
            kind, arrays = Kind.CHOSEN, [*arrays, limits, query.signatures, self._name]
        template = self._template(layer, kind, arrays)
        for i, array in enumerate(arrays[2:5], 2):
            if array.size:
                template.fill(i, array)
        return template

    def _template(self, layer: LayerView, kind: Kind, arrays: Arrays) -> QuestionTemplate:
        """The layer's, of these arrays at first."""
        template = self._templates.get((layer.number, kind))
        if template is None:
            template = self._templates[layer.number, kind] = QuestionTemplate(kind, arrays)
        return template

    def _attend_locally(
        self, layer: LayerView, query: Query, among: Range, n: int, limits: U64
    ) -> ListAttention:
        """This process's part, among its tokens."""
        softmax, _ = self._full.scoring(layer)
        i, local, q, competing = layer.index, self._local, query.q, among.first < among.last
        if competing and query.sketches is not None:
            return local.attend_sketched(i, q, query.sketches, among, n, softmax)
        if competing and self._best is None:
            self._best = local.search_best(i, query, among, n)
        return local.attend_chosen(i, q, among, self._best, limits, softmax)

    def _limits_of(
        self, layer: LayerView, query: Query, among: Range, k: int
    ) -> tuple[list[int], U64]:
        """The keys (H,) up to which the tokens of all processes are the best of all, after how many
        each has named. Where all that one has named are among them, it is asked for all it has."""
        spans = self._spans(among)
        asked, most = self._shares.plan(layer.number, spans, k)
        named = self._gather(layer, query, spans, asked)
        limits, given = self._key_limits(named, k)
        again = [n if one == few < n else 0 for n, one, few in zip(most, given, asked)]
        if any(again):
            more = self._gather(layer, query, spans, again)
            named = [x if n else one for n, x, one in zip(again, more, named)]
            asked = [n or one for n, one in zip(again, asked)]
            limits, given = self._key_limits(named, k)
        self._shares.update(layer.number, given)
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

    def _gather(
        self, layer: LayerView, query: Query, spans: list[Span], wanted: list[int]
    ) -> list[U64]:
        """The entries (H, n) of each process's best tokens, as many as are wanted of it."""
        kind: Kind = Kind.LARGEST
        arrays: list[NDArray[Any]] = [np.array([layer.index]), _NO_CHOICE, query.q]
        if query.column is not None:
            kind, arrays = Kind.NEAREST, [*arrays[:2], query.signatures, self._name]
        template = self._template(layer, kind, arrays)
        template.fill(2, query.operand)
        for link, span, n in zip(self._links, spans, wanted):
            if n:
                template.fill(1, _CHOICE.pack(*span, n))
                link.ask(template.message())
        n_local, none = wanted[-1], np.empty((query.n_heads, 0), np.uint64)
        if n_local:
            first, last = spans[-1]
            self._best = self._local.search_best(
                layer.index, query, Range(first, last, last), n_local
            )
        named: list[U64] = []
        for link, n in zip(self._links, wanted):
            named += link.answer((_U64, (query.n_heads, n))).arrays if n else [none]
        return [*named, self._best.entries if n_local and self._best else none]
