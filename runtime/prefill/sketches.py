"""Sketches of stored keys, by which the rows of a prompt choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..attend.indexes.sketches import NAME, RERANKED, SketchIndex
from ..attend.sparse import SEED
from ..attend.sparse.centre import averaged
from .row_index import RowIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...ops.select import Range
    from ..attend import LayerView

    F32 = NDArray[np.float32]

__all__ = ["NAME", "RowSketches"]


class RowSketches(RowIndex, SketchIndex):
    """The index of `topk`, for many rows at a time.

    The centre that is taken off the keys is of tokens before the chunk of the rows, so that what
    they choose does not depend on how a prompt was cut into calls.
    """

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import RowSketchScratch

        config, most = self._config, RERANKED * k
        self._rows = RowSketchScratch(config.n_heads, config.n_kv_heads, n_ctx, most, self._layout)

    def index(self, layer: LayerView, chunk: int, stop: int) -> None:
        n = averaged(chunk)
        if layer.config.window is None:
            self.cover_with(layer, n, stop, stop)
        else:
            self.leave_out_with(layer, n, stop)

    def choose_rows(
        self,
        layer: LayerView,
        q: F32,
        among: Range,
        k: int,
        lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
    ) -> int:
        from ...ops.select import Wanted, best_sketched_rows
        from ...ops.select.work import ROWS

        wanted = Wanted(k, RERANKED * k, SEED)
        best_sketched_rows(q, self.keys(layer), among, wanted, lists, counts, scratch=self._rows)
        readings = -(-len(q) // ROWS)
        tokens = (among.last - among.first) * self._config.n_kv_heads
        return readings * tokens * (self._rotation.bits // 8 + 2)
