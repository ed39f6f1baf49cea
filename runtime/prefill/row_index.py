"""What an index must offer so that the rows of a prompt can choose by it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from ..attend.sparse import TokenIndex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...ops.select import Range
    from ..attend import LayerView

    F32 = NDArray[np.float32]


class RowIndex(TokenIndex):
    """The index of an attend method, by which many rows choose at a time."""

    @abstractmethod
    def index(self, layer: LayerView, chunk: int, stop: int) -> None:
        """Index the tokens below `stop` that are not yet, before rows of the chunk at `chunk`."""

    @abstractmethod
    def choose_rows(
        self,
        layer: LayerView,
        q: F32,
        among: Range,
        k: int,
        lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
    ) -> int:
        """For each row of q (R, H, E), what `choose` would: lists (R, J, room), counts (R, J).

        Returns the bytes of the index that one thread reads for them.
        """
