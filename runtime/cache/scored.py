"""The KV cache of a context that evicts many tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ...ops.arrays import I64
from ...ops.attention.layout import n_segments
from ...system.spelling import spelt
from ..attend import LayerView
from ..keep import KeepError, LayerSlots, SlotParts
from ..keep.scored import ScoredSlots
from ..keep.scored.queries import BLOCK, bytes_of
from ..memory import available_bytes, human_bytes
from ..methods import Progress
from ..stats import KeptTokens
from ..store import StoreError
from ..store.ram.slots import NO_BOUND, SlotCopy
from .slots import SlotCache

_FACTS = 7


@dataclass(frozen=True)
class ScoredKept(KeptTokens):
    """What a context that evicts many tokens at once keeps.

    dropped: one number, tokens that were evicted; most_bytes: bytes that KV cache and queries took
    at most, in this order.
    """

    dropped: I64 = field(default_factory=lambda: np.zeros(1, np.int64))
    most_bytes: I64 = field(default_factory=lambda: np.zeros(2, np.int64))

    @property
    def n_kept(self) -> int:
        return max(0, len(self.tokens) - int(self.dropped[0]))

    def as_dict(self) -> dict[str, Any]:
        n = len(self.tokens)
        kept = [min(n, size) if size else self.n_kept for size in self.layers]
        kv, queries = self.most_bytes.tolist()
        return {
            **super().as_dict(),
            "kept_in_layers": kept,
            "most_kv_bytes": kv,
            "most_query_bytes": queries,
        }

    def __str__(self) -> str:
        kv, queries = self.most_bytes
        beside = f" and {human_bytes(queries)} of queries" if queries else ""
        return f"{super().__str__()}; held at most {human_bytes(kv)} of KV cache{beside}"


class ScoredCache(SlotCache):
    """Layers without a window hold a prompt whole, then what `ScoredSlots` keeps of it."""

    def __init__(
        self, parts: SlotParts, layers: list[LayerView], slots: Sequence[LayerSlots], n_ctx: int
    ) -> None:
        super().__init__(parts, layers, slots)
        self._queries, self._n_ctx = parts.queries, n_ctx
        self._scored = [layer for layer in slots if isinstance(layer, ScoredSlots)]
        sizes = self._store.slots
        self._sizes = tuple(0 if size == NO_BOUND else size for size in sizes)
        self._widest = max(self._sizes)
        self._dropped, self._most = np.zeros(1, np.int64), np.zeros(2, np.int64)
        if self._store.saved.tokens and self._scored:
            self._restore()
            self._check_restored(len(self._store.saved.tokens))
        self._store.extra_parts = self._extra_parts

    @property
    def notices(self) -> Sequence[str]:
        if not self._scored:
            return super().notices
        keep, n = self._scored[0].keep, self._n_ctx
        queries = ""
        if keep.uses_queries:
            n_bytes = self._queries.bytes_for(keep.n_proxies(n, self._budget))
            queries = f" and {human_bytes(n_bytes)} of queries"
        whole, kept = (self._store.bytes_for(size) for size in (n, self._budget + keep.every))
        return (
            f"keep {keep.name} holds a prompt whole until the first token is generated: "
            f"{human_bytes(whole)} of KV cache{queries} for {n:,} tokens, then {human_bytes(kept)}",
            *super().notices,
        )

    def begin(self, start: int, n_tokens: int, *, prompt: bool) -> None:
        if start == 0:
            self._queries.clear()
            for slots in self._scored:
                slots.clear()
        if self.attend.chooses and not prompt:
            self._check_chosen(start, n_tokens)
        self.store.cut(start)
        self._reserve(start, n_tokens)
        self._begin_pass(start, n_tokens, prompt)

    def _check_chosen(self, start: int, n_tokens: int) -> None:
        """Raise `KeepError` where an attend method would choose among more than it has room for."""
        for slots in self._scored:
            before = slots.budget if slots.ends_prompt(start) else slots.n_held(start)
            if before + n_tokens > self._n_ctx and not slots.keep.every:
                raise KeepError(
                    f"keep {slots.keep.name} holds {before + n_tokens:,} tokens and the attend "
                    f"method chooses among {self._n_ctx:,} at most: use a larger "
                    f"{spelt('ctx')}, or {spelt('keep_every')} N"
                )

    def _reserve(self, start: int, n_tokens: int) -> None:
        """Make room in the slots, and in the scratch of attention."""
        store, needed = self._store, self._n_held(start) + n_tokens
        reserved = max(needed, min(start + n_tokens, self._widest))
        if n_segments(reserved) > n_segments(store.reserved):
            more = store.bytes_for(reserved) - store.bytes_for(store.reserved)
            if more > (available := available_bytes()):
                raise StoreError(
                    f"holding {needed:,} tokens of a prompt whole needs another "
                    f"{human_bytes(more)} of KV cache and {human_bytes(available)} of memory are "
                    f"available: use a shorter prompt, a smaller {spelt('kv_type')}, or "
                    f"{spelt('keep')} streaming"
                )
        store.reserve(reserved)
        if needed > self.layers[0].scratch.n_ctx:
            larger = {
                s: type(s)(s.n_heads, s.n_kv_heads, s.layout, s.max_rows, 2 * needed)
                for s in dict.fromkeys(view.scratch for view in self.layers)
            }
            for i, slots in enumerate(self._slots):
                view = self.layers[i]
                self.layers[i] = slots.view = replace(view, scratch=larger[view.scratch])

    def end(self, n_tokens: int) -> None:
        """Count, and free what is no longer needed."""
        super().end(n_tokens)
        before, after = self._start, self._start + n_tokens
        self._dropped[0] = self._scored[0].n_dropped if self._scored else 0
        now = self._store.n_bytes, self._queries.n_bytes
        np.maximum(self._most, now, out=self._most)
        needed = max(self._n_held(after), min(after, self._widest))
        if n_segments(self._store.reserved) > n_segments(needed):
            self._store.shrink(needed)
        if any(slots.collects for slots in self._scored):
            self._queries.free_before(min(slots.first_proxy(before) for slots in self._scored))
        else:
            self._queries.clear()

    def index(self, n_tokens: int, layers: slice, progress: Progress | None) -> None:
        """Nothing: what stays is indexed before the next generated token, see `ScoredSlots`."""

    def kept_tokens(self, tokens: Sequence[int]) -> KeptTokens | None:
        budget = self._budget if self._scored else 0
        return ScoredKept(tokens, budget, self._sizes, self._dropped, self._most)

    def restore(self, copy: SlotCopy) -> None:
        super().restore(copy)
        if self._scored:
            self._restore()

    def cut_refusal(self, n_tokens: int, to: int) -> str:
        if why := super().cut_refusal(n_tokens, to):
            return why
        for slots in self._scored:
            if slots.collects and not self._queries.first <= slots.first_proxy(to) <= to:
                return f"queries that keep {slots.keep.name} needs from there on are gone"
        return ""

    def _n_held(self, n_tokens: int) -> int:
        return max((slots.n_held(n_tokens) for slots in self._scored), default=0)

    def _extra_parts(self) -> list[memoryview]:
        """Seven numbers, the queries, and the sums (layers, J, width) of methods that sum all."""
        if not self._scored:
            return []
        first, parts = self._scored[0], self._queries.parts()
        sums = np.stack([slots.sums for slots in self._scored])
        facts = [first.n_dropped, first.since, first.n_summed, first.in_prompt]
        facts += [self._queries.first, len(parts) // 2, sums.shape[2]]
        return [bytes_of(np.array(facts, "<i8")), *parts, bytes_of(sums)]

    def _restore(self) -> None:
        """Go on from what `_extra_parts` has saved; StoreError if it is not that."""
        store, queries, size = self._store, self._queries, 8 * _FACTS
        extra = store.extra
        if len(extra) < size:
            raise self._wrong()
        *numbers, first, n_blocks, width = extra[:size].view("<i8").tolist()
        shape = len(self._scored), store.n_kv_heads, width
        # Before memory is taken: the numbers are only what the file says.
        n_bytes = size + queries.bytes_for(n_blocks * BLOCK) + 4 * prod(shape)
        if min(first, n_blocks, width) < 0 or n_bytes != len(extra):
            raise self._wrong()
        sums = np.zeros(shape, np.float32)
        for part in [*queries.restore(first, n_blocks), bytes_of(sums)]:
            part[:] = extra[size : size + part.nbytes].data
            size += part.nbytes
        for slots, its_sums in zip(self._scored, sums):
            slots.n_dropped, slots.since, slots.n_summed = numbers[:3]
            slots.in_prompt, slots.sums = bool(numbers[3]), its_sums.copy()
        self._dropped[0] = numbers[0]

    def _check_restored(self, n_tokens: int) -> None:
        """StoreError unless slots and queries are those of so many tokens."""
        for slots in self._scored:
            numbers = slots.n_dropped, slots.since, slots.n_summed, self._queries.first
            n_held = slots.n_held(n_tokens)
            if not (
                all(0 <= number <= n_tokens for number in numbers)
                and n_held <= self._store.reserved
                and self._store.holds_each_once(slots.layer, n_held, n_tokens)
                and self._queries.has(slots.first_proxy(n_tokens), n_tokens)
            ):
                raise self._wrong()

    def _wrong(self) -> StoreError:
        return StoreError(
            f"a snapshot of keep {self._scored[0].keep.name} has {len(self._store.extra)} bytes of "
            "queries and scores, and is not one that this version of kvarn can go on from: make "
            "another pack"
        )
