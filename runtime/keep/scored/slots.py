"""The slots of one layer that holds a prompt whole, and the eviction from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from ....ops.attention.layout import TILE
from ...store import SlotStore
from .queries import BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...attend import LayerView
    from .queries import Queries

    F32 = NDArray[np.float32]


class SlotScorer(Protocol):
    """What slots need of a keep method: see `Scored`."""

    name: ClassVar[str]
    uses_queries: ClassVar[bool]
    sums_all: ClassVar[bool]

    @property
    def every(self) -> int: ...
    def n_proxies(self, n_tokens: int, budget: int) -> int: ...
    def scores(self, slots: ScoredSlots, n_held: int) -> F32: ...
    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> NDArray[np.int32]: ...


class ScoredSlots:
    """Tokens of one layer in ascending order: slot s of a KV head holds its token number s.

    n_dropped: tokens that were evicted so far, from each KV head; in_prompt: whether the last token
    belongs to a prompt; since: tokens that had been read at the last eviction; n_summed: tokens
    whose queries are in `sums` already, for methods that sum all.
    """

    def __init__(self, view: LayerView, keep: SlotScorer, budget: int, queries: Queries) -> None:
        assert isinstance(view.store, SlotStore)
        self.view, self.store, self.keep, self.budget = view, view.store, keep, budget
        self.layer, self.queries = view.index, queries
        self.clear()

    def clear(self) -> None:
        """No token is held."""
        self.n_dropped = self.since = self.n_summed = 0
        self.in_prompt = True
        self.sums: F32 = np.zeros((self.store.n_kv_heads, 0), np.float32)

    def held(self, n_tokens: int) -> int:
        """How many of the first `n_tokens` tokens, which were read, are held."""
        return max(0, n_tokens - self.n_dropped)

    def ends_prompt(self, n_tokens: int) -> bool:
        """Whether the eviction after the prompt is due before a token is generated."""
        return self.in_prompt and not self.n_dropped and self.held(n_tokens) > self.budget

    def room(self, n_tokens: int, prompt: bool) -> int | None:
        """Tokens that can follow `n_tokens` before an eviction, None: any number.

        prompt: whether they belong to a prompt.
        """
        if not self.keep.every or (prompt and not self.n_dropped):
            return None
        return self.budget + self.keep.every - self.held(n_tokens)

    @property
    def collects(self) -> bool:
        """Whether an eviction may come, for which queries are to be kept."""
        return self.keep.uses_queries and (not self.n_dropped or self.keep.every > 0)

    def first_proxy(self, n_tokens: int) -> int:
        """The first of `n_tokens` tokens whose query would score, if tokens were evicted now."""
        if not self.collects:
            return n_tokens
        if self.keep.sums_all:
            return self.n_summed
        n = self.keep.n_proxies(self.held(n_tokens), self.budget)
        return max(self.since, n_tokens - n)

    def append(self, k: F32, v: F32, position: int) -> int:
        """Store k, v (T, J, E) of tokens from `position` on; gives their first slot."""
        from ....ops.evict import set_positions

        store, positions, slot = self.store, self.store.positions, self.held(position)
        store.append(self.layer, k, v, slot)
        segments = positions.segments(self.layer)
        set_positions(segments, store.n_kv_heads, slot, position, len(k))
        positions.filled[self.layer] = slot + len(k)
        return slot

    def make_room(self, n_tokens: int, prompt: bool) -> int | None:
        """Evict if that is due before the next token; gives `room` after that."""
        if not prompt and self.ends_prompt(n_tokens):
            self.evict(n_tokens)
        room = self.room(n_tokens, prompt)
        if room is not None and room <= 0:
            self.evict(n_tokens)
            room = self.room(n_tokens, prompt)
        self.in_prompt = prompt
        return room

    def evict(self, n_tokens: int) -> None:
        """Keep the budget's tokens of those held of `n_tokens`."""
        from ....ops.evict import move_slots

        store, n_held = self.store, self.held(n_tokens)
        scores = self.keep.scores(self, n_held)
        sources = self.keep.choose(scores, self.budget, (self.layer, n_tokens))
        positions = store.positions.segments(self.layer)
        move_slots(store.segments(self.layer), positions, store.layout, sources)
        store.changed(self.layer, 0)
        if self.keep.sums_all:
            self.sums = np.take_along_axis(scores, sources.astype(np.intp), 1)
        self.n_dropped, self.since = n_tokens - self.budget, n_tokens
        store.positions.filled[self.layer] = self.budget

    def attention_sums(self, n_held: int) -> F32:
        """F (J, n_held): what the proxies pay to each slot, see `Scored`."""
        n_tokens = n_held + self.n_dropped
        if self.keep.sums_all:
            self.sum_pending(n_tokens)
            return self.sums[:, :n_held]
        sums = np.zeros((self.store.n_kv_heads, _padded(n_held)), np.float32)
        self._add(sums, self.first_proxy(n_tokens), n_tokens)
        return sums[:, :n_held]

    def sum_pending(self, n_tokens: int) -> None:
        """Add to `sums` what the queries pay that are not in them yet."""
        n_held = self.held(n_tokens)
        if self.sums.shape[1] < n_held:
            wider = np.zeros((len(self.sums), _padded(n_held + n_held // 2)), np.float32)
            wider[:, : self.sums.shape[1]] = self.sums
            self.sums = wider
        self._add(self.sums, self.n_summed, n_tokens)
        self.n_summed = n_tokens

    def _add(self, sums: F32, first: int, stop: int) -> None:
        """Add what the queries of tokens first to stop - 1 pay, all of which are held."""
        from ....ops.evict import add_attention

        segments, view = self.store.segments(self.layer), self.view
        for piece in self.queries.pieces(self.layer, first, stop):
            slot = piece.position - self.n_dropped
            if np.isnan(piece.log_sums).any():  # generated tokens
                self._find_log_sums(piece.queries, slot, piece.log_sums)
            add_attention(
                piece.queries,
                piece.log_sums,
                segments,
                slot,
                sums,
                scale=1.0,
                softcap=view.config.attention_softcap,
                scratch=view.scratch,
            )

    def attend(self, q: F32, slot: int, out: F32, scale: float, log_sums: F32) -> None:
        """Exact attention of tokens in slots from `slot` on, with the log sums of their scores."""
        from ....ops.attention import attention

        store, view = self.store, self.view
        attention(
            q,
            store.segments(self.layer),
            store.layout,
            store.n_kv_heads,
            slot,
            out,
            scale=scale,
            softcap=view.config.attention_softcap,
            scratch=view.scratch,
            log_sums=log_sums,
        )

    def _find_log_sums(self, queries: F32, slot: int, log_sums: F32) -> None:
        self.attend(queries, slot, np.empty_like(queries), 1.0, log_sums)


def _padded(n: int) -> int:
    return max(BLOCK, -(-n // TILE) * TILE)
