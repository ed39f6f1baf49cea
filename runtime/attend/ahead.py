"""What a sparse method is about to read from disk is asked for before it is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .base import LayerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATIENCE = 64
"""Layers that are still read ahead after one for which the process had to wait for the disk."""

Lists = tuple["NDArray[np.uint32]", "NDArray[np.int64]"]


class ReadAhead:
    """Asks for the tiles that a layer has chosen, and for what the next one chose a step before.

    Asking for what is in memory costs as much as finding it there, so it is done only while the
    process has lately waited for a disk (its major faults).
    """

    def __init__(self, layers: list[int]) -> None:
        self._next = dict(zip(layers, layers[1:] + layers[:1]))
        self._last: dict[int, Lists] = {}
        self._left, self._faults = 0, major_faults()

    def before(self, layer: LayerView) -> None:
        """`layer` is about to choose its tokens: ask for what the next one may want."""
        if self._awake(layer):
            following = self._next[layer.index]
            if following in self._last:
                self._ask(layer, following, *self._last[following])

    def chosen(
        self, layer: LayerView, lists: NDArray[np.uint32], counts: NDArray[np.int64]
    ) -> None:
        """`layer` is about to read these tokens."""
        if self._left:
            self._ask(layer, layer.index, lists, counts)
            self._last[layer.index] = lists[:, : counts.max()].copy(), counts.copy()

    def _awake(self, layer: LayerView) -> bool:
        """Whether the process has lately waited for the disk."""
        if not layer.store.n_mapped:
            return False
        faults = major_faults()
        self._left = PATIENCE if faults > self._faults else max(0, self._left - 1)
        self._faults = faults
        if not self._left:
            self._last.clear()
        return bool(self._left)

    def _ask(
        self, layer: LayerView, index: int, lists: NDArray[np.uint32], counts: NDArray[np.int64]
    ) -> None:
        from ...ops.attention.read_ahead import read_ahead

        store = layer.store
        read_ahead(lists, counts, store.segments(index), store.n_mapped, store.layout)


def major_faults() -> int:
    """Pages that this process has had to wait for so far; 0 where the system cannot read ahead."""
    from ...ops.attention.read_ahead import CAN_ASK

    if not CAN_ASK:
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
