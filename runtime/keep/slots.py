"""The slots of one layer of a context that evicts.

A slot is a place for one token in every KV head. A prompt fills the slots in order. What happens
when they are full is the keep method's. Keys are stored after rope, so tokens keep their positions,
and the order of slots does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...ops.arrays import U32

if TYPE_CHECKING:
    from ...ops.device import Array
    from ...ops.evict import Staging
    from ..attend import BoundAttend, LayerView
    from ..store import SlotStore
    from .scored.queries import Queries


@dataclass(frozen=True)
class SlotParts:
    """What the layers of one context share: where slots are, what attends to them, where new tokens
    wait for a slot. n_slots: of each layer without a window. queries: those that score."""

    store: SlotStore
    attend: BoundAttend
    staging: Staging
    n_slots: int
    queries: Queries


class LayerSlots(ABC):
    """The slots of one layer: which tokens they hold, and which are evicted for others."""

    def __init__(self, view: LayerView, parts: SlotParts) -> None:
        self.view, self.layer = view, view.index
        self.store, self.attend = parts.store, parts.attend

    @abstractmethod
    def read(
        self, q: Array, k: Array, v: Array, out: Array, *, position: int, prompt: bool
    ) -> None:
        """Store tokens from `position` on, evict others where it is due, and attend to the rest.

        q, out (T, H, E); k, v (T, J, E). A prompt uses exact attention; generated tokens are read
        one by one.
        """

    @abstractmethod
    def n_held(self, n_tokens: int) -> int:
        """How many tokens each KV head holds of `n_tokens` that were read."""

    @abstractmethod
    def places_left(self, n_tokens: int) -> int:
        """Generated tokens that can follow `n_tokens` without an eviction between them."""

    @abstractmethod
    def has_evicted(self, n_tokens: int) -> bool:
        """Whether one of `n_tokens` tokens has been evicted."""

    def kept_positions(self, n_tokens: int) -> U32:
        """Positions (J, n) in the slots after `n_tokens` tokens."""
        return self.store.kept_positions(self.layer, self.n_held(n_tokens))

    def append(self, k: Array, v: Array, slot: int, position: int) -> None:
        """Store k, v float32 (T, J, E) of tokens from `position` on in slots from `slot` on."""
        from ...ops.evict import set_positions

        store, positions = self.store, self.store.positions
        store.append(self.layer, k, v, slot)
        segments = positions.segments(self.layer)
        set_positions(segments, store.n_kv_heads, slot, position, len(k))
        positions.filled[self.layer] = slot + len(k)

    def rows_at_once(self, n_tokens: int, prompt: bool) -> int:
        """How many of `n_tokens` new tokens attend together: generated ones have the bits that each
        has alone."""
        return n_tokens if prompt else 1


class ReplacingSlots(LayerSlots):
    """Slots that are reused: once all are full, each new token replaces an older one.

    KV heads may replace different tokens. The new token attends to what the slots then hold.

    A chunk of tokens gives the same result as its tokens one by one, except for rounding.
    """

    def __init__(self, view: LayerView, parts: SlotParts) -> None:
        super().__init__(view, parts)
        self.staging, self.n_slots = parts.staging, parts.store.slots[view.index]

    @abstractmethod
    def choose(self, q: Array, position: int) -> None:
        """Choose slots for the staged tokens of queries q (T, H, E), from `position` on."""

    def read(
        self, q: Array, k: Array, v: Array, out: Array, *, position: int, prompt: bool
    ) -> None:
        step = self.rows_at_once(len(q), prompt)
        for t in range(0, len(q), step):
            start, rows = position + t, slice(t, t + step)
            free = min(max(self.n_slots - start, 0), len(q[rows]))
            filling, evicting = slice(t, t + free), slice(t + free, t + step)
            if free:
                self.append(k[filling], v[filling], start, start)
                self.attend.appended(self.view, start, free)
                self._attend(q[filling], start, start + free, out[filling], prompt)
            if len(q[evicting]):
                self.staging.put(k[evicting], v[evicting])
                self._evict(q[evicting], start + free, out[evicting], prompt)

    def _evict(self, q: Array, position: int, out: Array, prompt: bool) -> None:
        """Each staged token evicts another, and attends to those that stay."""
        self.choose(q, position)
        if len(q) > 1:
            self._attend_staged(q, out)
        self.write_staged(position)
        self.attend.replaced(self.view, self.staging.targets, len(q), self.n_slots)
        if len(q) == 1:
            self._attend(q, position, self.n_slots, out, prompt)

    def write_staged(self, position: int) -> None:
        """Write the staged tokens, whose positions begin at `position`, into their slots."""
        from ...ops.evict import write_staged

        positions = self.store.positions.segments(self.layer)
        write_staged(self.staging, self.store.segments(self.layer), positions, position)

    def _attend(self, q: Array, position: int, stored: int, out: Array, prompt: bool) -> None:
        if prompt:
            self.attend.attend_prompt(self.view, q, stored - len(q), out)
        else:
            self.attend.attend_slots(self.view, q, position, stored, out)

    def _attend_staged(self, q: Array, out: Array) -> None:
        from ...ops.evict import staged_attention

        staged_attention(
            self.staging,
            q,
            self.store.segments(self.layer),
            self.n_slots,
            out,
            softmax=self.view.softmax,
            scratch=self.view.scratch,
        )

    def n_held(self, n_tokens: int) -> int:
        return min(n_tokens, self.n_slots)

    def places_left(self, n_tokens: int) -> int:
        return self.n_slots - n_tokens

    def has_evicted(self, n_tokens: int) -> bool:
        return n_tokens > self.n_slots


class Ring(ReplacingSlots):
    """The first `sinks` tokens stay; of the others, the newest replaces the oldest."""

    def __init__(self, view: LayerView, parts: SlotParts, sinks: int) -> None:
        super().__init__(view, parts)
        self._sinks = sinks

    def choose(self, q: Array, position: int) -> None:
        from ...ops.evict import choose_oldest

        choose_oldest(self.staging, self.n_slots, position, self._sinks)
