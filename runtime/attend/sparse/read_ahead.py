"""Read-ahead for sparse methods: asks the system for pages on disk before they are touched."""

from __future__ import annotations

import mmap

import numpy as np

from ....ops.arrays import I64, U8, U32
from ...store import KVStore
from ..base import LayerView

PATIENCE = 8
"""Read-ahead goes on for this many layers after the last one that read from disk."""
ENOUGH = 1 << 20
"""Bytes read from disk between two layers that turn read-ahead on."""
FLOOD = 16 * ENOUGH
"""Bytes between two layers after which no layer is left alone."""
FEW = 16
"""A layer that lacks fewer tiles is left alone for the next `REST` steps: to look at 280,000 pages
and 55,000 tokens takes 2 to 3 ms, to read a missing page when it is touched 0.1 to 0.4."""
REST = 8
PAGES_PER_TOKEN = 32
"""To look at so many pages costs as much as to request a token's tile: between 2.5 and 75 ns for a
page, and 300 ns for a token, as three share a request of 1 µs."""


class ReadAhead:
    """Asks for the tiles that a layer has chosen, and for those that the next layer chose a step
    before.

    To ask for a page that is in memory costs several times as much as to read it. So it asks only
    while the process reads from disk. Where many tokens are chosen, it first asks the system which
    pages are in memory. Where nearly all are, it leaves the layer alone for some steps: a pack in
    memory that loses a page now and then would otherwise be looked through at each of them.
    """

    def __init__(self, layers: list[int]) -> None:
        self._next = dict(zip(layers, layers[1:] + layers[:1]))
        self._last: dict[int, tuple[int, U32, I64]] = {}
        self._pages: dict[int, U8] = {}
        self._asked: dict[int, int] = {}
        self._rests: dict[int, int] = {}
        self._left, self._bytes = 0, bytes_from_disk()

    def request_next(self, layer: LayerView) -> None:
        """`layer` is about to choose its tokens: ask for those that the next layer may read."""
        if self._is_reading_disk(layer):
            following = self._next[layer.number]
            if following in self._last and not self._rests.get(following):
                self._asked[following] = self._ask(layer, *self._last[following])

    def chosen(self, layer: LayerView, lists: U32, counts: I64) -> None:
        """`layer` is about to read these tokens."""
        if not self._left:
            return
        number, index = layer.number, layer.index
        self._last[number] = index, lists[:, : counts.max()].copy(), counts.copy()
        if self._rests.get(number):
            self._rests[number] -= 1
            return
        n_requests = self._asked.pop(number, 0) + self._ask(layer, index, lists, counts)
        self._pages.pop(index, None)
        if n_requests < FEW:
            self._rests[number] = REST

    def rows(self, layer: LayerView, lists: U32, counts: I64) -> None:
        """Rows of a prompt are about to read these tokens: lists (R, J, room), counts (R, J)."""
        if self._is_reading_disk(layer):
            for row, n in zip(lists, counts):
                self._ask(layer, layer.index, row, n)
            self._pages.pop(layer.index, None)

    def rehearse(self, layer: LayerView) -> None:
        """Ask for nothing, as a context on disk asks for its tiles."""
        from ....ops.attention.decode.read_ahead import CAN_READ_AHEAD, read_ahead

        store, none = layer.store, np.zeros(layer.store.n_kv_heads, np.int64)
        if CAN_READ_AHEAD:
            lists = np.zeros((len(none), 1), np.uint32)
            read_ahead(lists, none, store.segments(layer.index), 0, store.layout)

    def is_due(self, store: KVStore) -> bool:
        """Whether to ask for what the next token chooses, and so to read it layer by layer."""
        if not store.n_mapped:
            return False
        n_bytes = bytes_from_disk()
        if self._left or n_bytes - self._bytes >= ENOUGH:
            return True
        self._bytes = n_bytes
        return False

    def _is_reading_disk(self, layer: LayerView) -> bool:
        """Whether the process has lately read from disk."""
        if not layer.store.n_mapped:
            return False
        n_bytes = bytes_from_disk()
        n_new, self._bytes = n_bytes - self._bytes, n_bytes
        self._left = PATIENCE if n_new >= ENOUGH else max(0, self._left - 1)
        if n_new >= FLOOD:
            self._rests.clear()
        if not self._left:
            for known in (self._last, self._pages, self._asked, self._rests):
                known.clear()
        return bool(self._left)

    def _ask(self, layer: LayerView, index: int, lists: U32, counts: I64) -> int:
        """Ask for what is not in memory, as far as that is known; returns how many requests."""
        from ....ops.attention.decode.read_ahead import NOTHING_KNOWN, pages_in_memory, read_ahead

        store = layer.store
        segments, n_mapped, layout = store.segments(index), store.n_mapped, store.layout
        n_pages = n_mapped * layout.segment_bytes(store.n_kv_heads) // mmap.PAGESIZE
        pages = self._pages.get(index, NOTHING_KNOWN)
        if len(pages) != n_mapped:
            pages = NOTHING_KNOWN
            if store.tells_pages and n_pages <= PAGES_PER_TOKEN * int(counts.sum()):
                pages = pages_in_memory(segments, n_mapped, layout, store.n_kv_heads)
                self._pages[index] = pages
        return read_ahead(lists, counts, segments, n_mapped, layout, pages)


def bytes_from_disk() -> int:
    """Bytes that this process has read from disk; 0 if the system cannot read ahead."""
    from ....ops.attention.decode.read_ahead import CAN_READ_AHEAD

    if not CAN_READ_AHEAD:
        return 0
    import resource

    return 512 * resource.getrusage(resource.RUSAGE_SELF).ru_inblock
