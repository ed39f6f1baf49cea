"""The KV cache of a context that evicts tokens: a fixed number of slots in each layer.

A slot is a place for one token in every KV head. Slots are overwritten in any order, so a column
holds the position of each token:

    K and V      tiles, as in every store      [segment][kv_head][tile]
    positions    u32 per slot                  [segment][kv_head][slot]
    others       what the keep method adds     [segment][kv_head][slot]

Layers that hold a prompt whole have as many slots as it has tokens, until `shrink`.
These are the state that a snapshot saves. Columns of attend methods are not: a context that opens
the snapshot indexes the slots again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....ops.arrays import F32, I64, U32
from ....ops.attention.layout import SEGMENT, TileLayout, n_segments
from ....ops.device import Places
from ..base import Column, KVStore
from .store import RamColumn, RamStore

NO_BOUND = 1 << 31
"""Slots of a layer that holds a prompt whole: positions have 31 bits."""


@dataclass(frozen=True)
class SlotCopy:
    """The whole state of a `SlotStore`. parts: the bytes of `SlotStore.parts`; filled: those of the
    columns; extra: what the keep method adds."""

    reserved: int
    parts: list[bytes]
    filled: Mapping[str, I64]
    extra: bytes


class SlotStore(KVStore):
    """`slots[layer]` slots per layer in memory; layers of equal size share their mappings.

    `parts` is the whole state, which `disk.slots` saves. extra_parts gives what the keep method
    adds to it; extra: that of the snapshot that was opened, uint8.
    """

    def __init__(
        self, layout: TileLayout, slots: Sequence[int], n_kv_heads: int, whole: Sequence[int] = ()
    ) -> None:
        self.layout, self.n_layers, self.n_kv_heads = layout, len(slots), n_kv_heads
        self._planned = tuple(slots)
        self.slots = slots = tuple(NO_BOUND if i in whole else n for i, n in enumerate(slots))
        self.extra = np.empty(0, np.uint8)
        self.extra_parts: Callable[[], list[memoryview]] = list
        self._stores = {
            size: RamStore(layout, self.slots.count(size), n_kv_heads) for size in set(slots)
        }
        self._number = [self.slots[:layer].count(size) for layer, size in enumerate(slots)]
        self.columns: dict[str, SlotColumn] = {}
        self.reserved = 0
        self._indexes: dict[str, SlotColumn] = {}
        self.positions = self.state_column("positions", 4)

    def bytes_needed(self) -> int:
        """Bytes of K and V when all slots are filled."""
        planned = dict(zip(self.slots, self._planned))
        return sum(store.bytes_for(planned[size]) for size, store in self._stores.items())

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes of K and V of `n_tokens` tokens, as far as they have slots."""
        return sum(store.bytes_for(min(n_tokens, size)) for size, store in self._stores.items())

    def state_bytes(self, n_tokens: int) -> int:
        """Bytes of `parts` with `n_tokens` reserved."""
        n_bytes = self.bytes_for(n_tokens)
        n_bytes += 0 if self.states is None else self.states.memory.nbytes
        item_bytes = sum(column.item_bytes for column in self.columns.values())
        for size, store in self._stores.items():
            n = n_segments(min(n_tokens, size)) * store.n_layers
            n_bytes += n * SEGMENT * self.n_kv_heads * item_bytes
        return n_bytes

    def shrink(self, n_tokens: int) -> None:
        """Free what is reserved beyond tokens 0 to n_tokens - 1."""
        self.reserved = int(n_tokens)
        for size, store in self._stores.items():
            store.shrink(min(n_tokens, size))
        for index in self._indexes.values():
            for size, part in index.parts.items():
                part.memory.shrink(min(n_tokens, size))

    def reserve(self, n_tokens: int) -> None:
        self.reserved = max(self.reserved, int(n_tokens))
        for size, store in self._stores.items():
            store.reserve(min(n_tokens, size))
        self._grow_indexes()

    def parts(self) -> Iterator[memoryview]:
        """All reserved memory: K, V and columns. `slots`, the columns and what was reserved
        determine the order."""
        for _, store in sorted(self._stores.items()):
            yield from store.parts()
        if self.states is not None:
            yield self.states.memory.data.cast("B")

    def copy(self) -> SlotCopy:
        """A copy of the state, of `n_bytes` without indexes."""
        return SlotCopy(
            self.reserved,
            [bytes(part) for part in self.parts()],
            {name: column.filled.copy() for name, column in self.columns.items()},
            b"".join(self.extra_parts()),
        )

    def restore(self, copy: SlotCopy) -> None:
        """Restore the state of a `copy`; indexes are to be computed anew."""
        self.cut(0)
        if self.reserved > copy.reserved:
            self.shrink(copy.reserved)
        self.reserve(copy.reserved)
        for part, saved in zip(self.parts(), copy.parts, strict=True):
            part[:] = saved
        for name, filled in copy.filled.items():
            self.columns[name].filled[:] = filled
        for layer in range(self.n_layers):
            self.changed(layer, 0)
        self.extra = np.frombuffer(copy.extra, np.uint8)

    def segments(self, layer: int) -> Places:
        return self._stores[self.slots[layer]].segments(self._number[layer])

    def append(self, layer: int, k: F32, v: F32, start: int) -> None:
        """Store k, v float32[T, J, E] in the slots start … start + T - 1 of the layer."""
        self._stores[self.slots[layer]].append(self._number[layer], k, v, start)
        self.changed(layer, start)

    def changed(self, layer: int, start: int) -> None:
        """The slots from `start` on hold other tokens than those that were indexed."""
        for column in self._indexes.values():
            column.filled[layer] = min(column.filled[layer], start)

    def state_column(self, name: str, item_bytes: int) -> SlotColumn:
        """A column of the keep method, which is saved with the slots; as `column` otherwise."""
        for store in self._stores.values():
            store.column(name, item_bytes)
        if name not in self.columns:
            parts = {size: store.columns[name] for size, store in self._stores.items()}
            self.columns[name] = SlotColumn(item_bytes, self.slots, self._number, parts)
        return self.columns[name]

    def column(self, name: str, item_bytes: int) -> Column:
        if name not in self._indexes:
            parts = {
                size: RamColumn(name, item_bytes, store.n_layers, self.n_kv_heads)
                for size, store in self._stores.items()
            }
            self._indexes[name] = SlotColumn(item_bytes, self.slots, self._number, parts)
            self._grow_indexes()
        self._indexes[name].check_items(name, item_bytes)
        return self._indexes[name]

    def _grow_indexes(self) -> None:
        for index in self._indexes.values():
            for size, part in index.parts.items():
                part.memory.grow(min(self.reserved, size))

    def drop_column(self, name: str) -> None:
        self._indexes.pop(name, None)

    def kept_positions(self, layer: int, n_tokens: int) -> U32:
        """Positions (J, n) that the slots of a layer hold after `n_tokens` tokens, slot by slot."""
        places, filled = self.positions.segments(layer), min(n_tokens, self.slots[layer])
        items = self.device.read_items(places, self.n_kv_heads, self.positions.item_bytes)
        return items.view(np.uint32)[:, :filled, 0]

    def holds_each_once(self, layer: int, n_slots: int, n_tokens: int) -> bool:
        """Whether the first `n_slots` slots of a layer, as far as `n_tokens` tokens fill them, hold
        other ones of these tokens each."""
        n_filled = min(n_slots, n_tokens)
        kept = self.kept_positions(layer, n_filled)
        if kept.shape[1] < n_filled or kept.max(initial=0) >= max(n_tokens, 1):
            return False
        seen = np.zeros((len(kept), n_tokens), np.bool_)
        np.put_along_axis(seen, kept.astype(np.intp), True, 1)
        return bool((seen.sum(1) == n_filled).all())

    @property
    def n_bytes(self) -> int:
        stores = sum(store.n_bytes for store in self._stores.values())
        parts = [part for index in self._indexes.values() for part in index.parts.values()]
        return stores + sum(part.memory.n_bytes for part in parts)


class SlotColumn(Column):
    """A column whose layers are in several stores. parts: by the size of the stores."""

    def __init__(
        self,
        item_bytes: int,
        slots: Sequence[int],
        number: list[int],
        parts: Mapping[int, RamColumn],
    ) -> None:
        self.item_bytes, self.filled = item_bytes, np.zeros(len(slots), np.int64)
        self.parts = parts
        self._places = [(parts[size], i) for size, i in zip(slots, number)]

    def segments(self, layer: int) -> Places:
        part, number = self._places[layer]
        return part.segments(number)
