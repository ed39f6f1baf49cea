"""The slots of one layer, and the attention of a context whose tokens give way.

A prompt fills the slots in order; then each token takes the place of another, in every KV head
perhaps of a different one, and attends to what the slots then hold: the paper's procedure for
prompts and answers alike, whatever the cuts of a prompt. Keys are rotated already, so tokens
keep their positions; the order of slots means nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import KeepError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...models.config import ModelConfig
    from ..attend import Attend, LayerView
    from ..store import Ram, SlotStore
    from .base import Evicting


class Slots(ABC):
    """The slots of one layer, in the store; a method says which of them a token takes."""

    def __init__(self, store: SlotStore, layer: int) -> None:
        self.store, self.layer, self.n_slots = store, layer, store.slots[layer]

    def fill(self, k: NDArray[np.float32], v: NDArray[np.float32], start: int) -> None:
        """Store k, v float32 (T, J, E) of positions start … in the slots of these numbers."""
        self.store.append(self.layer, k, v, start)
        self._note(start, start, len(k))
        self.store.positions.filled[self.layer] = start + len(k)

    @abstractmethod
    def replace(
        self,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        position: int,
    ) -> None:
        """Store k, v float32 (1, J, E), which have the queries q (1, H, E), in full slots."""

    def kept(self, n_tokens: int) -> NDArray[np.uint32]:
        """Positions (J, n) in the slots after `n_tokens` tokens."""
        return self.store.kept(self.layer, n_tokens)

    def _note(self, slot: int, position: int, count: int) -> None:
        from ...ops.evict import set_positions

        store = self.store
        set_positions(store.positions.segments(self.layer), store.n_kv_heads, slot, position, count)


class Ring(Slots):
    """The first `sinks` tokens stay; behind them the newest token replaces the oldest."""

    def __init__(self, store: SlotStore, layer: int, sinks: int) -> None:
        super().__init__(store, layer)
        self._sinks = sinks

    def replace(
        self,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        position: int,
    ) -> None:
        slot = self._sinks + (position - self._sinks) % (self.n_slots - self._sinks)
        self.store.append(self.layer, k, v, slot)
        self._note(slot, position, 1)


def open_slots(
    keep: Evicting, ram: Ram, config: ModelConfig, n_ctx: int, attend: Attend
) -> tuple[SlotStore, list[Slots]]:
    """The store of a context of `n_ctx` tokens and the slots of each layer.

    Global layers keep what `keep` says, layers with a window their window. Raises `StoreError`
    where memory cannot hold it and `KeepError` for attend methods that need tokens in order.
    """
    if not attend.reads_slots:
        raise KeepError(
            f"keep {keep.name} cannot be combined with {type(attend).__name__.lower()} attention, "
            "which needs tokens in order: use full attention or keep all"
        )
    budget = keep.slots(n_ctx)
    store = ram.open_slots(config, [min(layer.window or budget, n_ctx) for layer in config.layers])
    return store, [
        keep.open(store, i, config.n_heads) if layer.window is None else Ring(store, i, sinks=0)
        for i, layer in enumerate(config.layers)
    ]


@dataclass(frozen=True, slots=True)
class SlotAttention:
    """The attention object of a chunk: token by token, store, then attend to all filled slots."""

    layers: list[LayerView]
    slots: list[Slots]
    attend: Attend
    start: int

    def __call__(
        self,
        layer: int,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        view, slots, start = self.layers[layer], self.slots[layer], self.start
        free = min(max(slots.n_slots - start, 0), len(q))
        if free:
            slots.fill(k[:free], v[:free], start)
            self.attend(view, q[:free], start, out[:free])
        for t in range(free, len(q)):
            one = slice(t, t + 1)
            slots.replace(q[one], k[one], v[one], start + t)
            self.attend(view, q[one], slots.n_slots - 1, out[one])
