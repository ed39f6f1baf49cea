"""What a sparse method is about to read from disk is asked for before it is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base import LayerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATIENCE = 8
"""Layers that are still read ahead after the last one for which something came from disk."""
ENOUGH = 1 << 20
"""Bytes from disk between two layers that make asking worth its while."""

Lists = tuple["NDArray[np.uint32]", "NDArray[np.int64]"]


class ReadAhead:
    """Asks for the tiles that a layer has chosen, and for what the next one chose a step before.

    Asking for what is in memory costs several times as much as reading it, so it is done only
    while the process reads from disk.
    """

    def __init__(self, layers: list[int]) -> None:
        self._next = dict(zip(layers, layers[1:] + layers[:1]))
        self._last: dict[int, Lists] = {}
        self._left, self._bytes = 0, bytes_from_disk()

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
        """Whether the process has lately read from disk."""
        if not layer.store.n_mapped:
            return False
        n_bytes = bytes_from_disk()
        came = n_bytes - self._bytes >= ENOUGH
        self._left, self._bytes = PATIENCE if came else max(0, self._left - 1), n_bytes
        if not self._left:
            self._last.clear()
        return bool(self._left)

    def _ask(
        self, layer: LayerView, index: int, lists: NDArray[np.uint32], counts: NDArray[np.int64]
    ) -> None:
        from ....ops.attention.decode.read_ahead import read_ahead

        store = layer.store
        read_ahead(lists, counts, store.segments(index), store.n_mapped, store.layout)


def bytes_from_disk() -> int:
    """What this process has had read so far; 0 where the system cannot read ahead."""
    from ....ops.attention.decode.read_ahead import CAN_READ_AHEAD

    if not CAN_READ_AHEAD:
        return 0
    import resource

    return 512 * resource.getrusage(resource.RUSAGE_SELF).ru_inblock
