"""The KV cache of a context that evicts many tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ....ops.attention.layout import n_segments
from ...memory import available_bytes, human_bytes
from ...stats import Kept
from ...store import StoreError
from ..base import KeepError
from ..cache import KVCache
from .queries import BLOCK, bytes_of
from .slots import ScoredSlots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...attend import BoundAttend
    from ...methods import Progress
    from ...store import SlotStore
    from ...store.slots import SlotCopy
    from .attention import ScoredAttention
    from .queries import Queries

_FACTS = 7


@dataclass(frozen=True)
class ScoredKept(Kept):
    """What a context that evicts many tokens at once keeps.

    dropped: one number, tokens that were evicted; most_bytes: bytes that KV cache and queries took
    at most, in this order.
    """

    dropped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    most_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

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


class ScoredCache(KVCache):
    """Layers without a window hold a prompt whole, then what `ScoredSlots` keeps of it."""

    keeps_all = False

    def __init__(
        self,
        store: SlotStore,
        attend: BoundAttend,
        attention: ScoredAttention,
        queries: Queries,
        n_ctx: int,
    ) -> None:
        super().__init__(store, attend, attention)
        self._store, self._attention, self._queries = store, attention, queries
        self._scored = [one for one in attention.slots if isinstance(one, ScoredSlots)]
        self._windows = [one.n_slots for one in attention.slots if not isinstance(one, ScoredSlots)]
        self._widest = max(self._windows, default=0)
        self._dropped, self._most = np.zeros(1, np.int64), np.zeros(2, np.int64)
        self._n_ctx = n_ctx
        if store.saved.tokens and self._scored:
            self._restore()
            self._check_restored(len(store.saved.tokens))
        store.extra_parts = self._extra_parts
        attention.finished = self._finish

    @property
    def notices(self) -> Sequence[str]:
        if not self._scored:
            return self.attend.notices
        one, store = self._scored[0], self._store
        n, kept = self._n_ctx, one.budget + one.keep.every
        queries = ""
        if one.keep.uses_queries:
            n_bytes = self._queries.bytes_for(one.keep.n_proxies(n, one.budget))
            queries = f" and {human_bytes(n_bytes)} of queries"
        whole = (
            f"keep {one.keep.name} holds a prompt whole until the first token is generated: "
            f"{human_bytes(store.bytes_for(n))} of KV cache{queries} for {n:,} tokens, then "
            f"{human_bytes(store.bytes_for(kept))}"
        )
        return (whole, *self.attend.notices)

    def begin(self, start: int, n_tokens: int, *, prompt: bool) -> None:
        if start == 0:
            self._queries.clear()
            for one in self._scored:
                one.clear()
        self.store.cut(start)
        if self.attend.chooses and not prompt:
            self._check_chosen(start, n_tokens)
        self._reserve(start, n_tokens)
        self._attention.begin(start, n_tokens, prompt)

    def _check_chosen(self, start: int, n_tokens: int) -> None:
        """Raise `KeepError` where an attend method would choose among more than it has room for."""
        for one in self._scored:
            due = one.ends_prompt(start)
            held = n_tokens + (one.budget if due else one.held(start))
            if held > self._n_ctx and not one.keep.every:
                raise KeepError(
                    f"keep {one.keep.name} holds {held:,} tokens and the attend method chooses "
                    f"among {self._n_ctx:,} at most: use a larger --ctx, or --keep-every N"
                )

    def _reserve(self, start: int, n_tokens: int) -> None:
        """Make room in the slots, and in the scratch of attention."""
        needed = self._held(start) + n_tokens
        reserved = max(needed, min(start + n_tokens, self._widest))
        store, views = self._store, self._attention.layers
        if n_segments(reserved) > n_segments(store.reserved):
            more = store.bytes_for(reserved) - store.bytes_for(store.reserved)
            if more > (available := available_bytes()):
                raise StoreError(
                    f"holding {needed:,} tokens of a prompt whole needs another "
                    f"{human_bytes(more)} of KV cache and {human_bytes(available)} of memory are "
                    "available: use a shorter prompt, a smaller --kv-type, or --keep streaming"
                )
        store.reserve(reserved)
        scratch = views[0].scratch
        if needed > scratch.n_ctx:
            larger = type(scratch)(
                scratch.n_heads, scratch.n_kv_heads, scratch.layout, scratch.max_rows, 2 * needed
            )
            views[:] = [replace(view, scratch=larger) for view in views]
            for one in self._scored:
                one.view = views[one.layer]

    def _finish(self, before: int, after: int) -> None:
        """A pass has ended: count, and free what is no longer needed."""
        self._dropped[0] = self._scored[0].n_dropped if self._scored else 0
        now = self._store.n_bytes, self._queries.n_bytes
        np.maximum(self._most, now, out=self._most)
        kept = max(self._held(after), min(after, self._widest))
        if n_segments(self._store.reserved) > n_segments(kept):
            self._store.shrink(kept)
        if any(one.collects for one in self._scored):
            self._queries.drop(min(one.first_proxy(before) for one in self._scored))
        else:
            self._queries.clear()

    def index(self, n_tokens: int, progress: Progress | None) -> None:
        """Nothing: what is kept is indexed before the next generated token, see `attention`."""

    def kept(self, layer: int, n_tokens: int) -> NDArray[np.uint32]:
        slots = self._attention.slots[layer]
        if isinstance(slots, ScoredSlots):
            return self._store.kept(layer, slots.held(n_tokens))
        return slots.kept(n_tokens)

    @property
    def most_tokens(self) -> int:
        """As far as positions of 31 bits reach: what is held has no other bound than memory."""
        from ....ops.evict.api import LAST_POSITION

        return LAST_POSITION

    def kept_of(self, tokens: Sequence[int]) -> Kept | None:
        slots = self._attention.slots
        sizes = tuple(0 if isinstance(one, ScoredSlots) else one.n_slots for one in slots)
        budget = self._scored[0].budget if self._scored else 0
        return ScoredKept(tokens, budget, sizes, self._dropped, self._most)

    def places_left(self, n_tokens: int) -> int:
        """Generated tokens that can follow; an eviction before the first of them is none of
        theirs."""
        left = min([self.most_tokens, *self._windows]) - n_tokens
        for one in self._scored:
            room, every = one.room(n_tokens, prompt=False), one.keep.every
            if room is not None:
                due = room <= 0 or one.ends_prompt(n_tokens)
                left = min(left, every if due else room)
        return left

    def evicted(self, n_tokens: int) -> bool:
        gone = any(one.n_dropped for one in self._scored) and n_tokens > 0
        return gone or any(n_tokens > size for size in self._windows)

    def copied(self) -> SlotCopy:
        return self._store.copied()

    def put_back(self, copy: SlotCopy) -> None:
        self._store.put_back(copy)
        if self._scored:
            self._restore()

    def cut_refusal(self, n_tokens: int, to: int) -> str:
        if why := super().cut_refusal(n_tokens, to):
            return why
        for one in self._scored:
            if one.collects and not self._queries.first <= one.first_proxy(to) <= to:
                return f"queries that keep {one.keep.name} needs from there on are gone"
        return ""

    def _held(self, n_tokens: int) -> int:
        return max((one.held(n_tokens) for one in self._scored), default=0)

    def _extra_parts(self) -> list[memoryview]:
        """Seven numbers, the queries, and the sums (layers, J, width) of methods that sum all."""
        if not self._scored:
            return []
        one, parts = self._scored[0], self._queries.parts()
        sums = np.stack([slots.sums for slots in self._scored])
        facts = [one.n_dropped, one.since, one.n_summed, one.in_prompt]
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
        for one, its_sums in zip(self._scored, sums):
            one.n_dropped, one.since, one.n_summed = numbers[:3]
            one.in_prompt, one.sums = bool(numbers[3]), its_sums.copy()
        self._dropped[0] = numbers[0]

    def _check_restored(self, n_tokens: int) -> None:
        """StoreError unless slots and queries are those of so many tokens."""
        for one in self._scored:
            numbers = one.n_dropped, one.since, one.n_summed, self._queries.first
            if not (
                all(0 <= number <= n_tokens for number in numbers)
                and one.held(n_tokens) <= self._store.reserved
                and self._store.holds_each_once(one.layer, one.held(n_tokens), n_tokens)
                and self._queries.has(one.first_proxy(n_tokens), n_tokens)
            ):
                raise self._wrong()

    def _wrong(self) -> StoreError:
        return StoreError(
            f"a snapshot of keep {self._scored[0].keep.name} has {len(self._store.extra)} bytes of "
            "queries and scores, and is not one that this version of kvarn can go on from: make "
            "another pack"
        )
