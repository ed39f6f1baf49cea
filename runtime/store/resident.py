"""The KV cache in the memory of a GPU, and behind it, if it is to be saved, a store on the host.

Each layer has one array, uint8 (segments, bytes of a segment), with the bytes that stores on the
host have, for as many tokens as the context can hold. It is allocated at once and stays where it
is, so that recorded launches serve every token. Columns are the same. A commit copies the segments
that have changed since the last one to the store behind, and has them saved there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...ops.arrays import F32, I64
from ...ops.attention.layout import SEGMENT, TILE, n_segments
from ...ops.cpu import CPU
from .base import Allow, Column, KVStore, SlotPlan, StoreError
from .method import Store
from .ram.factory import Ram

if TYPE_CHECKING:
    from ...ops.device import Array, KVDevice
    from ..loading.model_info import ModelInfo
    from .ram.slots import SlotStore


@dataclass(frozen=True)
class Resident(Store):
    """A KV cache on `device`, with the types of `host`, and saved by it if it saves."""

    name: ClassVar[str] = "resident"
    summary: ClassVar[str] = "in the memory of a GPU"

    host: Store
    device: KVDevice

    def types(self) -> tuple[str, str]:
        return self.host.types()

    def open(self, model: ModelInfo, n_ctx: int) -> ResidentStore:
        behind: KVStore
        if isinstance(self.host, Ram):
            behind = self.host.empty(model.config)  # which never gets any memory
            behind.centre = self.host.centre(model)
        else:
            behind = self.host.open(model, n_ctx)
        try:
            self.device.check_served(behind.layout)
            return ResidentStore(self.device, behind, n_ctx)
        except BaseException:
            behind.close()
            raise

    def open_slots(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> SlotStore:
        raise StoreError(f"a context that keeps {slots} has K and V in the host's memory")


def place_on(store: Store, device: KVDevice) -> Store:
    """The store with K and V in the memory of a GPU; it saves what it saves."""
    return store.placed_on(device) or Resident(store, device)


class ResidentColumn(Column):
    """Index data on the device."""

    def __init__(self, item_bytes: int, items: list[Array]) -> None:
        self.item_bytes, self.items = item_bytes, items
        self.filled = np.zeros(len(items), np.int64)

    def segments(self, layer: int) -> Array:
        return self.items[layer]


class ResidentStore(KVStore):
    """K and V of up to `n_ctx` tokens on a device. behind: a store on the host that has the same
    sizes, where they are saved, if it saves, and what was saved is read from."""

    records = True

    def __init__(self, device: KVDevice, behind: KVStore, n_ctx: int) -> None:
        self.device: KVDevice = device
        self._behind, self.saved, self.centre = behind, behind.saved, behind.centre
        self.layout, self.n_layers = behind.layout, behind.n_layers
        self.n_kv_heads = behind.n_kv_heads
        self._item_bytes = self.layout.tile_bytes // TILE
        n_saved = len(self.saved.tokens)
        self.room = n_segments(max(n_ctx, n_saved))
        shape = self.room, self.layout.segment_bytes(self.n_kv_heads)
        self._kv = [device.zeros(shape, np.uint8) for _ in range(self.n_layers)]
        self._columns: dict[str, ResidentColumn] = {}
        self._aside: dict[int, list[list[Array]]] = {}
        self._copied = n_saved
        """How many tokens, from the first on, the store behind has as they are here."""
        for layer in range(self.n_layers):
            self._fetch_kv(layer, n_saved)

    def cut(self, n_tokens: int) -> None:
        for column in self._columns.values():
            np.minimum(column.filled, n_tokens, out=column.filled)
        self._invalidate(n_tokens)

    def has_room(self, n_tokens: int) -> bool:
        """Whether it can hold so many tokens."""
        return n_segments(n_tokens) <= self.room

    def reaches(self, n_tokens: int) -> bool:
        return self._behind.reaches(n_tokens)

    def go_back(self, n_tokens: int) -> int:
        # Layers with a window hold what they hold in the store behind, and what was read since.
        if self._behind.reaches(n_tokens):
            return n_tokens
        position = self._behind.go_back(n_tokens)
        self._invalidate(position)
        for layer in self._behind.windowed_layers:
            self._fetch_kv(layer, position)
        return position

    def pin(self, n_tokens: int) -> None:
        self._behind.pin(n_tokens)

    def end_text(self, n_tokens: int) -> None:
        self._behind.end_text(n_tokens)

    def first(self, layer: int) -> int:
        return self._behind.first(layer)

    def reserve(self, n_tokens: int) -> None:
        if not self.has_room(n_tokens):
            raise StoreError(
                f"the KV cache on the GPU has room for {self.room * SEGMENT:,} tokens, not for "
                f"{n_tokens:,}"
            )

    def segments(self, layer: int) -> Array:
        return self._kv[layer]

    def append(self, layer: int, k: Array, v: Array, start: int) -> None:
        for column in self._columns.values():
            column.filled[layer] = min(column.filled[layer], start)
        self._invalidate(start)
        self.device.append_kv(k, v, self._kv[layer], self.layout, start)

    def column(self, name: str, item_bytes: int) -> Column:
        column = self._columns.get(name)
        if column is None:
            if not self._aside.get(item_bytes):
                self.reserve_columns(item_bytes)
            column = ResidentColumn(item_bytes, self._aside[item_bytes].pop())
            self._columns[name] = column
            self._restore(name, column)
        column.check_items(name, item_bytes)
        return column

    def reserve_columns(self, item_bytes: int, n: int = 1) -> None:
        shape = self.room, self.n_kv_heads * SEGMENT * item_bytes
        for _ in range(n):
            items = [self.device.zeros(shape, np.uint8) for _ in range(self.n_layers)]
            self._aside.setdefault(item_bytes, []).append(items)

    def drop_column(self, name: str) -> None:
        # Its memory is used again. In layers that are not indexed it holds zeros, as a fresh one.
        if (column := self._columns.pop(name, None)) is not None:
            self._aside.setdefault(column.item_bytes, []).append(column.items)
        self._behind.drop_column(name)

    def saved_items(self, name: str) -> int:
        return self._behind.saved_items(name)

    @property
    def saves(self) -> bool:
        return self._behind.saves

    def commit(self, tokens: Sequence[int], hidden: F32 | None, n_prompt: int = 0) -> None:
        behind, n = self._behind, len(tokens)
        if not behind.saves:
            return
        self.cut(n)
        behind.reserve(n)
        for layer, kv in enumerate(self._kv):
            first = max(self._copied, behind.first(layer)) // SEGMENT
            segments = range(first, n_segments(n))
            self._copy_to_host(kv, behind.segments(layer), self._item_bytes, segments)
        for name, column in self._columns.items():
            saved = behind.column(name, column.item_bytes)
            full = int(column.filled.min()) // SEGMENT
            segments = range(int(saved.filled.min()) // SEGMENT, full)
            for layer in range(self.n_layers):
                places = column.segments(layer), saved.segments(layer)
                self._copy_to_host(*places, column.item_bytes, segments)
            np.maximum(saved.filled, full * SEGMENT, out=saved.filled)
        behind.commit(tokens, hidden, n_prompt)
        self._copied = n

    def limit_saves(self, allow: Allow) -> None:
        self._behind.limit_saves(allow)

    @property
    def written_bytes(self) -> int:
        return self._behind.written_bytes

    def check_saved(self) -> None:
        self._behind.check_saved()

    def close(self) -> None:
        self._behind.close()

    @property
    def n_bytes(self) -> int:
        item_bytes = sum(column.item_bytes for column in self._columns.values())
        item_bytes += sum(n * len(columns) for n, columns in self._aside.items())
        heads = self.n_layers * self.room * self.n_kv_heads
        return heads * (self.layout.head_bytes + SEGMENT * item_bytes)

    def _invalidate(self, start: int) -> None:
        """The tokens from `start` on change."""
        if start < self._copied:
            self._copied = int(start)
            self._behind.cut(self._copied)

    def _restore(self, name: str, column: ResidentColumn) -> None:
        """Read what the store behind has saved of a column."""
        if not self._behind.saved_items(name):
            return
        saved = self._behind.column(name, column.item_bytes)
        segments = range(min(int(saved.filled.min()), self._copied) // SEGMENT)
        for layer in range(self.n_layers):
            places = saved.segments(layer), column.segments(layer)
            self._fetch(*places, column.item_bytes, segments)
        column.filled[:] = len(segments) * SEGMENT

    def _fetch_kv(self, layer: int, n_tokens: int) -> None:
        """Copy a layer's K and V of the first `n_tokens` tokens, as far as the host has them."""
        segments = range(self._behind.first(layer) // SEGMENT, n_segments(n_tokens))
        places = self._behind.segments(layer), self._kv[layer]
        self._fetch(*places, self._item_bytes, segments)

    def _fetch(self, on_host: I64, on_device: Array, item_bytes: int, segments: range) -> None:
        """Copy segments from the host, one at a time: those of a pack are mapped files."""
        for i in segments:
            items = CPU.read_items(on_host[i : i + 1], self.n_kv_heads, item_bytes)
            self.device.write_items(on_device[i : i + 1], items)

    def _copy_to_host(
        self, on_device: Array, on_host: I64, item_bytes: int, segments: range
    ) -> None:
        """Copy segments to the host."""
        for i in segments:
            items = self.device.read_items(on_device[i : i + 1], self.n_kv_heads, item_bytes)
            CPU.write_items(on_host[i : i + 1], items)
