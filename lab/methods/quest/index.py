"""The least and the greatest key of each tile of 16 tokens, for `quest`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvarn.ops.arrays import F32
from kvarn.ops.attention.layout import TILE
from kvarn.runtime.attend.base import LayerView
from kvarn.runtime.attend.sparse import SEED, Chosen, TokenIndex
from kvarn.runtime.store.disk.checking.columns import CHECKS, ColumnSegment, Faults, infinite_f32

from .layout import LINE, QUARTERS, dimensions_of, scales_offset, tile_item_bytes

if TYPE_CHECKING:
    from kvarn.models.config import ModelConfig
    from kvarn.ops.select import Range, Wanted
    from kvarn.runtime.store import KVStore

NAME = "quest-box8"
"""Of the column: boxes of tiles in 8 bits."""


def _column_bytes(segment: ColumnSegment) -> int:
    return tile_item_bytes(segment.head_dim)


def _column_faults(segment: ColumnSegment) -> Faults:
    at = scales_offset(dimensions_of(segment.head_dim))
    yield "a scale is not finite", infinite_f32(segment.heads[:, at : at + 4 * QUARTERS * LINE])


CHECKS["quest"] = _column_bytes, _column_faults


class TileIndex(TokenIndex):
    """The box that each tile's keys, as stored, lie in; each query ranks the boxes of all tiles."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self._config, self._layout = config, store.layout
        self._item_bytes = tile_item_bytes(config.head_dim)
        self.column = self._boxes = store.column(NAME, self._item_bytes)

    def prepare(self, n_ctx: int, k: int) -> None:
        from .api import TileScratch

        config = self._config
        self._scratch = TileScratch(config.n_heads, config.n_kv_heads, n_ctx, k, self._layout)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        from .api import bound_tiles

        store, i = layer.store, layer.index
        items = self._boxes.segments(i)
        bound_tiles(store.segments(i), store.layout, store.n_kv_heads, items, first, last)

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        from .api import highest_tiles

        highest_tiles(
            q, self._boxes.segments(layer.index), among, wanted.k, chosen.lists, chosen.counts,
            seed=SEED, scratch=self._scratch,
        )  # fmt: skip
        # Of each dimension a query head reads one side of the boxes, a group soon both.
        sides = 2 if self._scratch.group > 1 else 1
        dimensions, n_tiles = self._scratch.dimensions, -(-(among.last - among.first) // TILE)
        return n_tiles * self._config.n_kv_heads * (sides * dimensions + 16)
