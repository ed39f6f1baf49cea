"""The share of the tokens that rows of a prompt did not read, by the means of blocks of them."""

from __future__ import annotations

from ...models.config import ModelConfig
from ...ops.arrays import F32
from ...ops.attention.layout import SEGMENT
from ...ops.attention.prefill.listed import ReadRows
from ...ops.attention.work import ROWS
from ...ops.select import RowMeansScratch, add_row_means
from ..attend import LayerView
from ..attend.indexes.means import BlockMeans
from ..store import KVStore


class RowTail:
    """Means as `topk --tail means` has them; they are its column."""

    def __init__(self, config: ModelConfig, store: KVStore) -> None:
        self._config, self._means = config, BlockMeans(config, store)
        self.column = self._means.column
        self._scratch = RowMeansScratch(config.n_heads, config.n_kv_heads, config.head_dim)

    def index(self, layer: LayerView, stop: int) -> None:
        """Index the tokens below `stop` that are not yet; layers with a window have no means."""
        first = int(self.column.filled[layer.index])
        if first >= stop:
            return
        if layer.config.window is None:
            self._means.write(layer, first // SEGMENT, stop // SEGMENT)
        self.column.filled[layer.index] = stop

    def add(self, layer: LayerView, q: F32, read: ReadRows, softmaxes: F32, out: F32) -> int:
        """Add the share of the tokens that the rows did not read to out; arguments as of
        `add_row_means`.

        Returns the bytes of the column that one thread reads for them.
        """
        n_full = -(-read.dense.first // SEGMENT)
        add_row_means(
            q,
            read,
            self.column.segments(layer.index)[:n_full],
            softmaxes,
            out,
            scoring=layer.softmax.scoring,
            scratch=self._scratch,
        )
        group = self._config.n_heads // self._config.n_kv_heads
        readings = -(-len(q) // (ROWS // group))
        return readings * n_full * SEGMENT * self.column.item_bytes * self._config.n_kv_heads
