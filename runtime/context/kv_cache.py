"""The KV cache of a context: a store, what gives way in it, and attention over it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..attend import LayerView
from ..keep import SlotAttention, open_slots
from .attention import StoredAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..attend import Attend
    from ..keep import Keep, Slots
    from ..model import Model
    from ..store import Disk, KVStore, Ram


@dataclass(frozen=True)
class KVCache:
    """One value of each axis at work: where K and V are, which tokens stay, which are read."""

    store: KVStore
    attend: Attend
    attention: StoredAttention | SlotAttention
    slots: Sequence[Slots]
    """Of each layer, where tokens are evicted; else empty."""

    @staticmethod
    def open(
        model: Model, n_ctx: int, chunk: int, attend: Attend, keep: Keep, store: Ram | Disk
    ) -> KVCache:
        """For contexts of `n_ctx` tokens, read at most `chunk` at a time.

        Raises `StoreError` where there is no room, and `KeepError` and `AttendError` for choices
        that do not go together.
        """
        config = model.config
        attend, evicting = attend.for_model(model), keep.evicting(n_ctx)
        if evicting is None:
            opened = store.open(model, n_ctx)
            with closed_on_error(opened):
                views = _views(model, opened, n_ctx, chunk)
                bound = attend.bound(config, opened, n_ctx)
                return KVCache(opened, bound, StoredAttention(views, bound, opened), ())
        slot_store, slots = open_slots(evicting, store, model, n_ctx, chunk, attend)
        with closed_on_error(slot_store):
            views = _views(model, slot_store, max(slots.n_slots for slots in slots), chunk)
            # Slots hold what a window lets through, in an order that is not the positions'.
            views = [replace(view, config=replace(view.config, window=None)) for view in views]
            return KVCache(slot_store, attend, SlotAttention(views, slots, attend), slots)

    def begin(self, start: int, n_tokens: int) -> None:
        """Make ready for `n_tokens` tokens from position `start` on; later ones are forgotten."""
        self.store.cut(start)
        self.store.reserve(start + n_tokens)
        self.attention.begin(start)

    def index(self, n_tokens: int, progress: Callable[[int, int], None] | None) -> None:
        """Build what the attend method's index lacks of the first `n_tokens` tokens."""
        if not self.slots:
            self.store.reserve(n_tokens)
            self.attend.build(self.attention.layers, n_tokens, progress)

    def kept(self, layer: int, n_tokens: int) -> NDArray[np.uint32]:
        """Positions that each KV head of a layer holds of `n_tokens` tokens, (J, n), unordered."""
        if self.slots:
            return self.slots[layer].kept(n_tokens)
        return np.tile(np.arange(n_tokens, dtype=np.uint32), (self.store.n_kv_heads, 1))

    def places_left(self, n_tokens: int, n_ctx: int) -> int:
        """Tokens that can follow `n_tokens` without eviction, in a context of `n_ctx`."""
        return min([n_ctx, *(slots.n_slots for slots in self.slots)]) - n_tokens

    def evicted(self, n_tokens: int) -> bool:
        """Whether one of `n_tokens` tokens has been evicted from some layer."""
        return any(n_tokens > slots.n_slots for slots in self.slots)


@contextmanager
def closed_on_error(store: KVStore) -> Iterator[None]:
    """A store that comes to nothing lets go of its files and its lock."""
    try:
        yield
    except BaseException:
        store.close()
        raise


def _views(model: Model, store: KVStore, n_ctx: int, chunk: int) -> list[LayerView]:
    from ...ops.attention import AttentionScratch

    config = model.config
    scratch = AttentionScratch(
        config.n_heads, config.n_kv_heads, store.layout, max_rows=chunk, n_ctx=n_ctx
    )
    return [LayerView(i, layer, store, scratch) for i, layer in enumerate(config.layers)]
