"""The KV cache of a context that evicts: each layer holds tokens in slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...ops.arrays import U32
from ...ops.device import Array
from ..attend import LayerView
from ..keep import LayerSlots, SlotParts
from ..methods import Progress
from ..stats import KeptTokens
from ..store.ram.slots import SlotCopy
from .base import KVCache


class SlotCache(KVCache):
    """Each layer holds as many tokens as it has slots, however many are read.

    Every query may decide which tokens are evicted.
    """

    keeps_all: ClassVar[bool] = False

    def __init__(
        self, parts: SlotParts, layers: list[LayerView], slots: Sequence[LayerSlots]
    ) -> None:
        super().__init__(parts.store, parts.attend, layers)
        self._store, self._slots, self._budget = parts.store, slots, parts.n_slots

    def _read(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        self._slots[layer].read(q, k, v, out, position=self._start, prompt=self._prompt)

    def copy(self) -> SlotCopy:
        return self._store.copy()

    def restore(self, copy: SlotCopy) -> None:
        self._store.restore(copy)

    def index(self, n_tokens: int, layers: slice, progress: Progress | None) -> None:
        self.attend.build(self.layers[layers], min(n_tokens, self._budget), progress)

    def kept_positions(self, layer: int, n_tokens: int) -> U32:
        return self._slots[layer].kept_positions(n_tokens)

    @property
    def most_tokens(self) -> int:
        """As many tokens as positions of 31 bits can count: the context's size is no limit."""
        from ...ops.evict.api import LAST_POSITION

        return LAST_POSITION

    def kept_tokens(self, tokens: Sequence[int]) -> KeptTokens | None:
        return KeptTokens(tokens, self._budget, self._store.slots)

    def places_left(self, n_tokens: int) -> int:
        left = (slots.places_left(n_tokens) for slots in self._slots)
        return min(self.most_tokens - n_tokens, *left)

    def has_evicted(self, n_tokens: int) -> bool:
        return any(slots.has_evicted(n_tokens) for slots in self._slots)
