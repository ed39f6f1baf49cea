"""The slots of one layer, and the attention of a context that evicts tokens.

A slot is a place for one token in every KV head. A prompt fills the slots in order. Then each token
evicts another one, possibly a different one in each KV head, and attends to what the slots then
hold. A chunk of tokens gives the same result as its tokens one by one, except for rounding. Keys
are stored after rope, so tokens keep their positions, and the order of slots does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...ops.pointwise import add_row
from ..stats import Kept
from .cache import KVCache, minus_centre

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...ops.device import Array, Recorded
    from ...ops.evict import Staging
    from ..attend import BoundAttend, LayerView
    from ..methods import Progress
    from ..store import SlotStore
    from ..store.slots import SlotCopy


class Slots(ABC):
    """The slots of one layer; the keep method chooses which of them a token takes."""

    def __init__(self, store: SlotStore, layer: int, staging: Staging) -> None:
        self.store, self.layer, self.staging = store, layer, staging
        self.n_slots = store.slots[layer]

    def fill(self, k: Array, v: Array, start: int) -> None:
        """Store k, v float32 (T, J, E) of positions start, start + 1, … in slots start, …."""
        from ...ops.evict import set_positions

        store, positions = self.store, self.store.positions
        store.append(self.layer, k, v, start)
        set_positions(positions.segments(self.layer), store.n_kv_heads, start, start, len(k))
        positions.filled[self.layer] = start + len(k)

    @abstractmethod
    def choose(self, q: Array, position: int) -> None:
        """Choose slots for the staged tokens of queries q (T, H, E), from `position` on."""

    def write_staged(self, position: int) -> None:
        """Write the staged tokens, whose positions begin at `position`, into their slots."""
        from ...ops.evict import write_staged

        positions = self.store.positions.segments(self.layer)
        write_staged(self.staging, self.store.segments(self.layer), positions, position)

    def kept(self, n_tokens: int) -> NDArray[np.uint32]:
        """Positions (J, n) in the slots after `n_tokens` tokens."""
        return self.store.kept(self.layer, n_tokens)


class Ring(Slots):
    """The first `sinks` tokens stay; of the others, the newest replaces the oldest."""

    def __init__(self, store: SlotStore, layer: int, staging: Staging, sinks: int) -> None:
        super().__init__(store, layer, staging)
        self._sinks = sinks

    def choose(self, q: Array, position: int) -> None:
        from ...ops.evict import choose_oldest

        choose_oldest(self.staging, self.n_slots, position, self._sinks)


@dataclass
class SlotAttention:
    """What the forward pass calls: fills free slots, then replaces tokens, and attends to slots.

    Prompts use exact attention; generated tokens choose one by one, where the method does.
    """

    layers: list[LayerView]
    slots: list[Slots]
    attend: BoundAttend
    start: int = 0
    prompt: bool = True
    graphs: dict[bool, Recorded] | None = None
    every_query: ClassVar[bool] = True  # they may decide which tokens are evicted

    def __post_init__(self) -> None:
        self._minus_centre = minus_centre(self.slots[0].store)

    def begin(self, start: int, n_tokens: int, prompt: bool) -> None:
        """See `CacheAttention.begin`."""
        self.start, self.prompt = start, prompt

    def done(self, n_tokens: int) -> None:
        """See `CacheAttention.done`."""

    def __call__(self, layer: int, q: Array, k: Array, v: Array, out: Array) -> None:
        if self._minus_centre is not None:
            add_row(k.reshape(len(k), -1), self._minus_centre[layer])
        step = 1 if self.attend.chooses and not self.prompt else len(q)
        for t in range(0, len(q), step):
            rows = slice(t, t + step)
            self._read(layer, q[rows], k[rows], v[rows], self.start + t, out[rows])

    def _read(self, layer: int, q: Array, k: Array, v: Array, start: int, out: Array) -> None:
        view, slots = self.layers[layer], self.slots[layer]
        free = min(max(slots.n_slots - start, 0), len(q))
        if free:
            slots.fill(k[:free], v[:free], start)
            self.attend.appended(view, start, free)
            self._attend(view, q[:free], start, start + free, out[:free])
        if free < len(q):
            self._evict(layer, q[free:], k[free:], v[free:], start + free, out[free:])

    def _evict(self, layer: int, q: Array, k: Array, v: Array, position: int, out: Array) -> None:
        """The slots are full: each token evicts another, and attends to those that stay."""
        view, slots = self.layers[layer], self.slots[layer]
        slots.staging.put(k, v)
        slots.choose(q, position)
        if len(q) > 1:
            self._attend_staged(view, slots, q, out)
        slots.write_staged(position)
        self.attend.replaced(view, slots.staging.targets, len(q), slots.n_slots)
        if len(q) == 1:
            self._attend(view, q, position, slots.n_slots, out)

    def _attend(self, view: LayerView, q: Array, position: int, stored: int, out: Array) -> None:
        if self.prompt:
            self.attend.attend_prompt(view, q, stored - len(q), out)
        else:
            self.attend.attend_slots(view, q, position, stored, out)

    def _attend_staged(self, view: LayerView, slots: Slots, q: Array, out: Array) -> None:
        from ...ops.evict import staged_attention

        config = view.config
        staged_attention(
            slots.staging,
            q,
            slots.store.segments(slots.layer),
            slots.n_slots,
            out,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            scratch=view.scratch,
        )


class SlotCache(KVCache):
    """Each layer holds as many tokens as it has slots, however many are read.

    budget: slots of the layers without a window.
    """

    keeps_all: ClassVar[bool] = False

    def __init__(
        self,
        store: SlotStore,
        attend: BoundAttend,
        attention: SlotAttention,
        slots: list[Slots],
        budget: int,
    ) -> None:
        super().__init__(store, attend, attention)
        self._store, self.slots, self._budget = store, slots, budget

    def copied(self) -> SlotCopy:
        return self._store.copied()

    def put_back(self, copy: SlotCopy) -> None:
        self._store.put_back(copy)

    def index(self, n_tokens: int, progress: Progress | None) -> None:
        self.attend.build(self.attention.layers, min(n_tokens, self._budget), progress)

    def kept(self, layer: int, n_tokens: int) -> NDArray[np.uint32]:
        return self.slots[layer].kept(n_tokens)

    @property
    def most_tokens(self) -> int:
        """As far as positions of 31 bits reach, whatever the size of the context."""
        from ...ops.evict.api import LAST_POSITION

        return LAST_POSITION

    def kept_of(self, tokens: Sequence[int]) -> Kept | None:
        return Kept(tokens, self._budget, tuple(slots.n_slots for slots in self.slots))

    def places_left(self, n_tokens: int) -> int:
        return min(slots.n_slots for slots in self.slots) - n_tokens

    def evicted(self, n_tokens: int) -> bool:
        return any(n_tokens > slots.n_slots for slots in self.slots)
