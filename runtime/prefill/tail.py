"""The share of the tokens that rows of a prompt did not read, by the means of blocks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...ops.attention.arguments import Dense, Scoring
from ...ops.attention.layout import SEGMENT
from ...ops.attention.work import ROWS
from ..attend.sparse import SEED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...models.config import ModelConfig
    from ..attend import LayerView
    from ..store import KVStore

    F32 = NDArray[np.float32]


class RowTail:
    """Mean key and value of each block of 32 similar keys, in column `means-SEED`.

    It is the column of `topk --tail means`, whose blocks are not kept here: only their means and
    the block of each token are needed.
    """

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        from ...ops.select import Rotation, RowMeansScratch, block_item_bytes, means_item_bytes

        self._config = config
        self.column = store.column(f"means-{SEED}", means_item_bytes(config.head_dim))
        self._rotation = Rotation.random(config.head_dim, SEED)
        n_bytes = SEGMENT * block_item_bytes(self._rotation.bits) * store.n_kv_heads
        self._blocks = np.zeros(n_bytes, np.uint8)
        self._scratch = RowMeansScratch(config.n_heads, config.n_kv_heads, config.head_dim)

    def index(self, layer: LayerView, stop: int) -> None:
        """Index the tokens below `stop` that are not yet; layers with a window have no means."""
        first = int(self.column.filled[layer.index])
        if first >= stop:
            return
        if layer.config.window is None:
            self._extend(layer, first // SEGMENT, stop // SEGMENT)
        self.column.filled[layer.index] = stop

    def _extend(self, layer: LayerView, first: int, stop: int) -> None:
        """Write the means of segments first … stop - 1."""
        from ...ops.select import block_keys, block_means

        store, i = layer.store, layer.index
        segments, items = store.segments(i), self.column.segments(i)
        blocks = np.full(len(segments), self._blocks.ctypes.data)  # of one segment at a time
        for s in range(first, stop):
            heads = store.layout, store.n_kv_heads
            block_keys(self._rotation, segments, *heads, blocks, s, s + 1)
            block_means(segments, *heads, blocks, items, s, s + 1)

    def add(
        self,
        layer: LayerView,
        q: F32,
        lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
        dense: Dense,
        softmaxes: F32,
        out: F32,
    ) -> int:
        """Add the share of the tokens that the rows did not read to out; arguments as of
        `add_row_means`.

        Returns the bytes of the column that one thread reads for them.
        """
        from ...ops.select import add_row_means

        config, n_full = layer.config, -(-dense.first // SEGMENT)
        add_row_means(
            q, lists, counts, dense, self.column.segments(layer.index)[:n_full], softmaxes, out,
            scoring=Scoring(config.attention_scale, config.attention_softcap),
            scratch=self._scratch,
        )  # fmt: skip
        group = self._config.n_heads // self._config.n_kv_heads
        readings = -(-len(q) // (ROWS // group))
        return readings * n_full * SEGMENT * self.column.item_bytes * self._config.n_kv_heads
