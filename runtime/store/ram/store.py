"""The KV cache in memory, allocated segment by segment as the context grows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from ....ops.arrays import I64
from ....ops.attention.layout import SEGMENT, TileLayout, n_segments
from ..base import Column
from ..host import HostStore
from ..windowed import WindowedLayers
from .anonymous import Pieces

_MOST_SEGMENTS = 1 << 21
"""Positions have 31 bits."""


class _Segments:
    """Anonymous memory: a piece for each segment, with parts of equal size for the layers."""

    def __init__(self, n_layers: int, layer_bytes: int, contents: str) -> None:
        self.n_layers, self.layer_bytes = n_layers, layer_bytes
        contents = f"another {SEGMENT:,} tokens of {contents}"
        self._pieces = Pieces(max(1, layer_bytes * n_layers), contents)
        self._segments: list[memoryview] = []
        self.addresses = list(np.empty((n_layers, 0), np.int64))

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment in all layers."""
        return self.layer_bytes * self.n_layers

    @property
    def n_bytes(self) -> int:
        return len(self._segments) * self.segment_bytes

    def parts(self) -> list[memoryview]:
        """The bytes of each segment."""
        return list(self._segments)

    def grow(self, n_tokens: int) -> None:
        for _ in range(-(-n_tokens // SEGMENT) - len(self._segments)):
            self._add()

    def shrink(self, n_tokens: int) -> None:
        n = -(-n_tokens // SEGMENT)
        del self._segments[n:]
        self.addresses = [addresses[:n].copy() for addresses in self.addresses]

    def _add(self) -> None:
        piece, base = self._pieces.take(len(self._segments))
        column = base + self.layer_bytes * np.arange(self.n_layers, dtype=np.int64)
        self._segments.append(piece)
        self.addresses = list(np.column_stack([self.addresses, column]))


class RamColumn(Column):
    """Index data in memory: `[layer][kv_head][token]` in the piece of each segment."""

    def __init__(self, name: str, item_bytes: int, n_layers: int, n_kv_heads: int) -> None:
        self.item_bytes = item_bytes
        self.filled = np.zeros(n_layers, np.int64)
        self.memory = _Segments(n_layers, SEGMENT * n_kv_heads * item_bytes, f"index {name}")

    def segments(self, layer: int) -> I64:
        return self.memory.addresses[layer]


class RamStore(HostStore[RamColumn]):
    """Anonymous memory, a piece for each segment of 1,024 tokens, all layers in it.

    Piece: [layer][kv_head][tile]. Fresh ones are zeros, in every stored type. windows: of layers
    that hold only what can still be read, as `windows_of` gives them; they have pieces of their
    own, and may have a layout and KV heads of their own, `in_windows`.
    """

    def __init__(
        self,
        layout: TileLayout,
        n_layers: int,
        n_kv_heads: int,
        windows: Sequence[int] = (),
        in_windows: tuple[TileLayout, int] | None = None,
    ) -> None:
        self.layout, self.n_layers, self.n_kv_heads = layout, n_layers, n_kv_heads
        geometry = in_windows or (layout, n_kv_heads)
        windowed = WindowedLayers(*geometry, windows) if any(windows) else None
        n_whole = n_layers if windowed is None else len(windowed.whole)
        self._memory = _Segments(n_whole, layout.segment_bytes(n_kv_heads), "KV cache")
        super().__init__(windowed, 0)
        self._place()

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes of K and V of a context of `n_tokens`."""
        n_bytes = n_segments(n_tokens) * self._memory.segment_bytes
        return n_bytes + (0 if self.windowed is None else self.windowed.bytes_for(n_tokens))

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment in the layers that hold all tokens."""
        return self._memory.segment_bytes

    def growth(self, n_held: int, n_tokens: int) -> int:
        columns = sum(column.memory.segment_bytes for column in self.columns.values())
        return self.bytes_for(n_tokens) + n_segments(n_tokens) * columns - self.n_bytes

    def tokens_in(self, n_bytes: int) -> int:
        """Tokens that fit in `n_bytes`, in whole segments."""
        counts = range(1, _MOST_SEGMENTS)
        return SEGMENT * bisect_right(counts, n_bytes, key=lambda n: self.bytes_for(n * SEGMENT))

    def reserve(self, n_tokens: int) -> None:
        self._reserved = max(self._reserved, n_tokens)
        self._memory.grow(n_tokens)
        for column in self.columns.values():
            column.memory.grow(n_tokens)
        moved = self.windowed is not None and self.windowed.advance(self._start, n_tokens)
        if moved or self._memory.addresses is not self._whole:
            self._place()

    def _place(self) -> None:
        self._place_segments(self._memory.addresses, n_segments(self._reserved))

    def shrink(self, n_tokens: int) -> None:
        """Free the segments beyond tokens 0 to n_tokens - 1. Layers have no windows."""
        self._reserved = n_tokens
        self._memory.shrink(n_tokens)
        for column in self.columns.values():
            column.memory.shrink(n_tokens)
        self._place()

    def _cut(self, start: int) -> None:
        if self.windowed is not None:
            self.windowed.cut(start)

    def parts(self) -> Iterator[memoryview]:
        """All memory that is reserved: K and V, then the columns by their names. Layers have no
        windows."""
        yield from self._memory.parts()
        for _, column in sorted(self.columns.items()):
            yield from column.memory.parts()

    def column(self, name: str, item_bytes: int) -> Column:
        if name not in self.columns:
            column = RamColumn(name, item_bytes, self.n_layers, self.n_kv_heads)
            column.memory.grow(self._reserved)
            self.columns[name] = column
        self.columns[name].check_items(name, item_bytes)
        return self.columns[name]

    @property
    def n_bytes(self) -> int:
        n_bytes = self._memory.n_bytes + sum(c.memory.n_bytes for c in self.columns.values())
        return n_bytes + (0 if self.windowed is None else self.windowed.n_bytes)
