"""Tokens of a KV cache as rows: all bytes of a token, of some layers, side by side.

row:  [layer][kv head][K row][V row][scale row]: the token's bytes of each tile (layout.py)
"""

from __future__ import annotations

import numpy as np

from ...ops.arrays import U8
from ...ops.attention.layout import TILE, TILES, TileLayout


class Rows:
    """Copies tokens between a segment's tiles and rows."""

    def __init__(self, layout: TileLayout, n_layers: int, n_kv_heads: int) -> None:
        k, v, scale = layout.k_row_bytes, layout.v_row_bytes, layout.scale_row_bytes
        # (start in the tile, bytes of a row, start in the token's row) of K, V and scales
        self._parts = ((0, k, 0), (layout.v_offset, v, k), (layout.scale_offset, scale, k + v))
        self._head_bytes, self._tile_bytes = k + v + scale, layout.tile_bytes
        self._heads = n_layers * n_kv_heads
        self.n_bytes = self._heads * self._head_bytes

    def gather(self, segment: U8, first: int, stop: int) -> U8:
        """Rows (n, n_bytes) of tokens first … stop - 1 of a segment, uint8 of all its bytes."""
        rows = np.empty((stop - first, self._heads, self._head_bytes), np.uint8)
        tiles, places = np.divmod(np.arange(first, stop), TILE)
        for part, at in self._views(segment):
            rows[:, :, at : at + part.shape[-1]] = part[:, tiles, places].swapaxes(0, 1)
        return rows.reshape(stop - first, self.n_bytes)

    def scatter(self, rows: U8, segment: U8, first: int = 0) -> None:
        """Write rows (n, n_bytes) as tokens first … first + n - 1 of a segment."""
        heads = rows.reshape(len(rows), self._heads, self._head_bytes)
        tiles, places = np.divmod(np.arange(first, first + len(rows)), TILE)
        for part, at in self._views(segment):
            part[:, tiles, places] = heads[:, :, at : at + part.shape[-1]].swapaxes(0, 1)

    def _views(self, segment: U8) -> list[tuple[U8, int]]:
        """(heads, tiles, 16, bytes) of each kind of row that the types have."""
        tiles = segment.reshape(self._heads, TILES, self._tile_bytes)
        return [
            (tiles[:, :, start : start + TILE * n].reshape(self._heads, TILES, TILE, n), at)
            for start, n, at in self._parts
            if n
        ]
