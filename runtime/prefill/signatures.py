"""Signatures of stored keys, by which the rows of a prompt choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..attend.hash import SignatureIndex
from ..attend.sparse import SEED
from .row_index import RowIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...ops.select import Range
    from ..attend import LayerView

    F32 = NDArray[np.float32]


class RowSignatures(RowIndex, SignatureIndex):
    """The index of `hash`, for many rows at a time."""

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import RowSignatureScratch

        config = self._config
        self._rows = RowSignatureScratch(config.n_heads, config.n_kv_heads, n_ctx, k)

    def index(self, layer: LayerView, chunk: int, stop: int) -> None:
        assert self.column is not None
        first = int(self.column.filled[layer.index])
        if layer.config.window is not None:
            self.leave_out(layer, max(first, stop))
        elif first < stop:
            self.cover(layer, first, stop)

    def choose_rows(
        self,
        layer: LayerView,
        q: F32,
        among: Range,
        k: int,
        lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
    ) -> int:
        from ...ops.select import nearest_rows
        from ...ops.select.work import ROWS

        assert self.column is not None
        signed = np.empty(q.shape[:2], np.uint64)
        self._networks[layer.index].sign_rows(q, signed)
        n_kv_heads = self._config.n_kv_heads
        nearest_rows(
            signed.reshape(len(q), n_kv_heads, -1), self.column.segments(layer.index), self._bits,
            among, k, lists, counts, seed=SEED, scratch=self._rows,
        )  # fmt: skip
        readings = -(-len(q) // ROWS)
        return readings * (among.last - among.first) * n_kv_heads * self._bits // 8
