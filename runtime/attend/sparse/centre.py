"""The centre of a layer's keys, which indexes by direction take off them.

    c[j] = mean of k[t, j], t = 4 … 1,024 n - 1,   n = 1, 2, 4, 8, 16

softmax(q · (k - c)) = softmax(q · k), and keys less their mean differ in direction by more. c is of
the first n full segments, the largest such n: it is fixed for good at 16,384 tokens, and depends on
the stored tokens alone, not on how a prompt was cut into calls. The first 4 tokens (sinks) do not
count: their keys are unlike the rest. Keys are as stored: what a 4-bit store takes off them
(`store.centre`) stays off, whatever it is.

Items that an index has made with another c are of no use, so its columns have n in their names
(`-c16`).

Column `centre`, of the first 16 segments: c of n segments in segment n - 1, zeros in the others.
So whatever overwrites a token voids all c that it is part of.

    of each KV head:  f32 [head_dim]  |  8 bytes digest of it  |  zeros
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from ....ops.attention.layout import SEGMENT
from ....ops.device import Array, Places

if TYPE_CHECKING:
    from ...store import KVStore
    from ..base import F32, LayerView

U8 = NDArray[np.uint8]

STAGES = (1, 2, 4, 8, 16)
"""Full segments of which a centre is the mean."""
COMPLETED = frozenset(n * SEGMENT for n in STAGES)
"""The numbers of stored tokens at which a layer gets another centre."""
N_FIRST = 4
"""Tokens that do not count."""
_DIGEST = 8


def averaged(stored: int) -> int:
    """How many segments the centre of a layer with so many stored tokens is of; 0: it has none."""
    full = min(stored // SEGMENT, STAGES[-1])
    return 1 << full.bit_length() - 1 if full else 0


class Centres:
    """The centres of one context's layers, computed when they are first wanted, and stored."""

    def __init__(self, store: KVStore) -> None:
        head_dim, layers = store.layout.head_dim, store.n_layers
        self._shape, self._device = (store.n_kv_heads, head_dim), store.device
        self._column = store.column("centre", -(-(4 * head_dim + _DIGEST) // SEGMENT))
        self.known: list[tuple[int, Array]] = [(0, np.zeros(self._shape, np.float32))] * layers
        """Of each layer, how many segments its centre is of, and the centre on the device."""

    def of(self, layer: LayerView, n: int) -> Array:
        """float32 (J, E) on the device: the mean of the stored keys of the first n segments, where
        n is one of `STAGES`."""
        store, column, i, stop = layer.store, self._column, layer.index, n * SEGMENT
        if column.filled[i] >= stop:  # nothing has been overwritten since
            if self.known[i][0] == n:
                return self.known[i][1]
            centre = self._stored(i, n)
            if centre is None:
                column.restart()
        else:
            centre = None
        if centre is None:
            centre = layer.device.select.mean_keys(
                store.segments(i), store.layout, store.n_kv_heads, N_FIRST, stop
            )
            self._store(i, n, centre)
            column.filled[i] = max(stop, column.filled[i])
        self.known[i] = n, self._device.put(centre)
        return self.known[i][1]

    def leave_out(self, layer: LayerView, stored: int) -> None:
        """Mark the centre of a layer that needs none as written: see `Column`."""
        filled = self._column.filled
        filled[layer.index] = max(averaged(stored) * SEGMENT, filled[layer.index])

    def _stored(self, i: int, n: int) -> F32 | None:
        """The centre that the column holds; None if its digest is wrong."""
        n_heads, head_dim = self._shape
        items = self._device.read_items(self._place(i, n), n_heads, self._column.item_bytes)
        records = items.reshape(n_heads, -1)[:, : 4 * head_dim + _DIGEST]
        centre: F32 = records[:, : 4 * head_dim].copy().view("<f4").astype(np.float32)
        return centre if np.array_equal(records, _encode(centre)) else None

    def _store(self, i: int, n: int, centre: F32) -> None:
        records, size = _encode(centre), SEGMENT * self._column.item_bytes
        items = np.zeros((len(records), size), np.uint8)
        items[:, : records.shape[1]] = records
        self._device.write_items(self._place(i, n), items.reshape(len(items), SEGMENT, -1))

    def _place(self, i: int, n: int) -> Places:
        """The segment of the column that has the centre of n segments."""
        return self._column.segments(i)[n - 1 : n]


def _encode(centre: F32) -> U8:
    """The bytes of a centre in the column, uint8 (J, 4 E + 8)."""
    rows = [row.tobytes() for row in centre.astype("<f4")]
    return np.array([list(row + xxhash.xxh3_64_digest(row)) for row in rows], np.uint8)
