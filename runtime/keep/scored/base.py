"""What keep methods that score all tokens at once share: options, and the slots of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....ops.arrays import F32, I32
from ....ops.attention.layout import TILE
from ...methods import option
from ..evicting import EvictingKeep
from ..slots import LayerSlots
from .queries import BLOCK

if TYPE_CHECKING:
    from ....ops.attention.softmax import Softmax
    from ...attend import LayerView
    from ..slots import SlotParts


def highest(scores: NDArray[np.floating], n: int) -> NDArray[np.intp]:
    """Slots of the n highest of `scores` (slots,), ascending; of equals, the earlier slot."""
    return np.sort(np.argsort(-scores, kind="stable")[:n])


def highest_of_heads(scores: F32, n: int) -> I32:
    """Slots of the n highest of each row of scores (J, slots), ascending: int32 (J, n)."""
    return np.stack([highest(row, n) for row in scores]).astype(np.int32)


@dataclass(frozen=True)
class ScoredKeep(EvictingKeep):
    """A keep method that scores all tokens of a prompt at once and evicts all but the best.

    A prompt, all that is read before the first generated token, is held whole. Then each KV head of
    a layer without a window keeps `budget` tokens, which move to the first slots in their order.
    (Where a prompt fits in the budget, this comes after the first one that does not.) every: evict
    again, down to the budget, whenever that many tokens have followed, generated or not; 0: only
    once.
    Scores are F = the sum, over the last queries (the proxies), of the rows of their causal softmax
    over the tokens in slots, and over the query heads that share a KV head. Raises `KeepError` for
    budgets as `EvictingKeep`, and for an `every` that is no count.
    """

    holds_prompts: ClassVar[bool] = True
    every: int = option(
        0,
        "evict again, down to the budget, whenever N more tokens have followed (default 0: once, "
        "after the prompt)",
        kind=int,
    )
    uses_queries: ClassVar[bool] = True
    """Whether queries score; without them, none are kept."""
    sums_all: ClassVar[bool] = False
    """Whether all queries are proxies; what they score is then summed while the prompt is read."""

    @property
    def protected(self) -> int:
        return 0

    @property
    def spare_slots(self) -> int:
        return self.every

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        """How many of the last queries score `n_tokens` tokens, of which `budget` stay.

        At a later eviction, at most those since the last one do.
        """
        return n_tokens if self.uses_queries else 0

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        """Slots that stay, ascending, int32 (J, budget): those of the highest scores float32
        (J, n), n > budget.

        seed: of the layer and the moment, for methods that draw.
        """
        return highest_of_heads(scores, budget)

    def scores(self, slots: ScoredSlots, n_held: int) -> F32:
        """Scores (J, n) of the first n slots of a layer."""
        return slots.attention_sums(n_held)

    def open_layer(self, view: LayerView, parts: SlotParts) -> ScoredSlots:
        return ScoredSlots(view, parts, self)


class ScoredSlots(LayerSlots):
    """Tokens of one layer in ascending order: slot s of a KV head holds its token number s.

    n_dropped: tokens that were evicted so far, from each KV head; in_prompt: whether the last token
    belongs to a prompt; since: tokens that had been read at the last eviction; n_summed: tokens
    whose queries are in `sums` already, for methods that sum all.
    """

    def __init__(self, view: LayerView, parts: SlotParts, keep: ScoredKeep) -> None:
        super().__init__(view, parts)
        self.keep, self.budget, self.queries = keep, parts.n_slots, parts.queries
        self.clear()

    def clear(self) -> None:
        """Hold no token."""
        self.n_dropped = self.since = self.n_summed = 0
        self.in_prompt = True
        self.sums: F32 = np.zeros((self.store.n_kv_heads, 0), np.float32)

    def n_held(self, n_tokens: int) -> int:
        return max(0, n_tokens - self.n_dropped)

    def has_evicted(self, n_tokens: int) -> bool:
        return self.n_dropped > 0 and n_tokens > 0

    def places_left(self, n_tokens: int) -> int:
        """An eviction before the first of them is none of theirs."""
        from ....ops.evict.api import LAST_POSITION

        room = self._room(n_tokens, prompt=False)
        if room is None:
            room = LAST_POSITION - n_tokens
        elif room <= 0 or self.ends_prompt(n_tokens):
            room = self.keep.every
        if self.keep.sums_all and self.collects:  # what is summed cannot be cut
            room = min(room, BLOCK - (n_tokens - self.n_summed) % BLOCK)
        return room

    def ends_prompt(self, n_tokens: int) -> bool:
        """Whether the eviction after the prompt is due before a token is generated."""
        return self.in_prompt and not self.n_dropped and self.n_held(n_tokens) > self.budget

    def _room(self, n_tokens: int, prompt: bool) -> int | None:
        """Tokens that can follow `n_tokens` before an eviction, None: any number.

        prompt: whether they belong to a prompt.
        """
        if not self.keep.every or (prompt and not self.n_dropped):
            return None
        return self.budget + self.keep.every - self.n_held(n_tokens)

    @property
    def collects(self) -> bool:
        """Whether queries must be kept, because an eviction may follow."""
        return self.keep.uses_queries and (not self.n_dropped or self.keep.every > 0)

    def first_proxy(self, n_tokens: int) -> int:
        """The first of `n_tokens` tokens whose query would score, if tokens were evicted now."""
        if not self.collects:
            return n_tokens
        if self.keep.sums_all:
            return self.n_summed
        n = self.keep.n_proxies(self.n_held(n_tokens), self.budget)
        return max(self.since, n_tokens - n)

    def read(self, q: F32, k: F32, v: F32, out: F32, *, position: int, prompt: bool) -> None:
        """Read a chunk in pieces and evict tokens between them."""
        step, done = self.rows_at_once(len(q), prompt), 0
        while done < len(q):
            start = position + done
            if self.keep.sums_all and self.collects and start - self.n_summed >= BLOCK:
                self._sum_pending(start)
            room = self._make_room(start, prompt)
            n = min(step, len(q) - done)
            n = n if room is None else min(room, n)
            part = slice(done, done + n)
            slot = self.n_held(start)
            self.append(k[part], v[part], slot, start)
            log_sums = self._attend(q[part], start, slot, out[part], prompt)
            if self.collects:
                scaled = q[part] * np.float32(self.view.config.attention_scale)
                self.queries.put(self.layer, start, scaled, log_sums)
            done += n

    def _make_room(self, n_tokens: int, prompt: bool) -> int | None:
        """Evict if that is due before the next token; return `_room` after it."""
        if not prompt and self.ends_prompt(n_tokens):
            self.evict(n_tokens)
        room = self._room(n_tokens, prompt)
        if room is not None and room <= 0:
            self.evict(n_tokens)
            room = self._room(n_tokens, prompt)
        self.in_prompt = prompt
        return room

    def evict(self, n_tokens: int) -> None:
        """Keep as many of `n_tokens` tokens as the budget allows."""
        from ....ops.evict import move_slots

        store = self.store
        scores = self.keep.scores(self, self.n_held(n_tokens))
        sources = self.keep.choose(scores, self.budget, (self.layer, n_tokens))
        positions = store.positions.segments(self.layer)
        move_slots(store.segments(self.layer), positions, store.layout, sources)
        store.changed(self.layer, 0)
        if self.keep.sums_all:
            self.sums = np.take_along_axis(scores, sources.astype(np.intp), 1)
        self.n_dropped, self.since = n_tokens - self.budget, n_tokens
        store.positions.filled[self.layer] = self.budget

    def attention_sums(self, n_held: int) -> F32:
        """F (J, n_held): what the proxies pay to each slot, see `ScoredKeep`."""
        n_tokens = n_held + self.n_dropped
        if self.keep.sums_all:
            self._sum_pending(n_tokens)
            return self.sums[:, :n_held]
        sums = np.zeros((self.store.n_kv_heads, _padded(n_held)), np.float32)
        self._add(sums, self.first_proxy(n_tokens), n_tokens)
        return sums[:, :n_held]

    def _sum_pending(self, n_tokens: int) -> None:
        """Add to `sums` what the queries pay that are not in them yet."""
        n_held = self.n_held(n_tokens)
        if self.sums.shape[1] < n_held:
            wider = np.zeros((len(self.sums), _padded(n_held + n_held // 2)), np.float32)
            wider[:, : self.sums.shape[1]] = self.sums
            self.sums = wider
        self._add(self.sums, self.n_summed, n_tokens)
        self.n_summed = n_tokens

    def _add(self, sums: F32, first: int, stop: int) -> None:
        """Add what the queries of tokens first to stop - 1 pay, all of which have slots."""
        from ....ops.evict import add_attention

        softmax = self.view.softmax._replace(scale=1.0)  # the queries are multiplied by it already
        for piece in self.queries.pieces(self.layer, first, stop):
            slot = piece.position - self.n_dropped
            if np.isnan(piece.log_sums).any():  # generated tokens
                out = np.empty_like(piece.queries)
                self._attend_exactly(piece.queries, slot, out, softmax, piece.log_sums)
            add_attention(
                piece.queries,
                piece.log_sums,
                self.store.segments(self.layer),
                slot,
                sums,
                softmax=softmax,
                scratch=self.view.scratch,
            )

    def _attend(self, q: F32, position: int, slot: int, out: F32, prompt: bool) -> F32 | None:
        """Attention of tokens in slots from `slot` on; the log sums of a prompt's scores.

        Only generated tokens choose: what a prompt leaves is indexed before the first of them.
        """
        if not prompt:
            self.attend.appended(self.view, slot, len(q))
            self.attend.attend_slots(self.view, q, position, slot + len(q), out)
            return None
        if not self.collects:
            self.attend.attend_prompt(self.view, q, slot, out)
            return None
        log_sums = np.empty(q.shape[:2], np.float32)
        self._attend_exactly(q, slot, out, self.view.softmax, log_sums)
        return log_sums

    def _attend_exactly(self, q: F32, slot: int, out: F32, softmax: Softmax, log_sums: F32) -> None:
        """Exact attention of tokens in slots from `slot` on, with the log sums of their scores."""
        from ....ops.attention.api import attention_rows

        attention_rows(
            q,
            self.store.segments(self.layer),
            slot,
            out,
            softmax=softmax,
            scratch=self.view.scratch,
            log_sums=log_sums,
        )


def _padded(n: int) -> int:
    return max(BLOCK, -(-n // TILE) * TILE)
