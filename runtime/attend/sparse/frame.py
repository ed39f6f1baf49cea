"""The frame in which indexes by direction see a layer's keys: (k - c) s, for queries q / s.

    c[j]    = mean of k[t, j],                   t = 4 … 1,024 n - 1,   n = 1, 2, 4, 8, 16
    s[j,e]  = ((Q[j,e] + r mean Q[j]) / (V[j,e] + r mean V[j])) ** (1/4),   r = 0.03

V: variance of the same k[t, j, e]; Q: mean square of the model's queries (`context.measuring`).

softmax(q · (k - c)) = softmax(q · k), and keys less their mean differ in direction by more. A
sketch spends its bits on all dimensions alike, and its error grows with |k - c| |q|. The scales
make that product smallest in the mean, without changing q · (k - c): models have dimensions in
which keys vary most and queries hardly look. Of the best 1% of tokens, sketches of Gemma 3 270M
then find 70 to 76% instead of 30%. s is such that keys keep their mean square.

Both are of the first n full segments, the largest such n: they are fixed for good at 16,384 tokens,
and depend on the model and the stored tokens alone, not on how a prompt was cut into calls. The
first 4 tokens (sinks) do not count: their keys are unlike the rest. Keys are as stored: what a
4-bit store takes off them (`store.centre`) stays off, whatever it is.

Items that an index has made in another frame are of no use, so its columns have n in their names
(`-c16`).

Column `frame`, of the first 16 segments: that of n segments in segment n - 1, zeros in the others.
So whatever overwrites a token voids all frames that it is part of. An index that needs the centre
alone measures no queries: its scales are 1, and its column is `centre`.

    of each KV head:  f32 c [head_dim]  |  f32 s [head_dim]  |  8 bytes digest of both  |  zeros
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xxhash

from ....ops.arrays import F32, U8
from ....ops.attention.layout import SEGMENT
from ....ops.device import Array, Places
from ....ops.select import Frame
from ...loading.model_info import ModelInfo
from ...store import KVStore
from ..base import LayerView

STAGES = (1, 2, 4, 8, 16)
"""Full segments of which a frame is."""
COMPLETED = frozenset(n * SEGMENT for n in STAGES)
"""The numbers of stored tokens at which a layer gets another frame."""
N_FIRST = 4
"""Tokens that do not count."""
SHARE = 0.03
"""r: a dimension that is always 0 gets no scale of its own."""
_DIGEST = 8


def averaged(stored: int) -> int:
    """How many segments the centre of a layer with so many stored tokens is of; 0: it has none."""
    full = min(stored // SEGMENT, STAGES[-1])
    return 1 << full.bit_length() - 1 if full else 0


class KeyFrame(NamedTuple):
    """The frame of a layer's keys on the device: its centre float32 (J, E), and all of it as
    kernels take it."""

    centre: Array
    padded: Frame


class Frames:
    """The frames of one context's layers, computed when they are first wanted, and stored.

    scaled: whether dimensions have scales.
    """

    def __init__(self, store: KVStore, scaled: bool = True) -> None:
        head_dim, layers = store.layout.head_dim, store.n_layers
        self._shape, self._device = (store.n_kv_heads, head_dim), store.device
        self._queries: F32 = np.zeros((layers, *self._shape), np.float32)
        self._scaled, name = scaled, "frame" if scaled else "centre"
        self._column = store.column(name, -(-(8 * head_dim + _DIGEST) // SEGMENT))
        self.known: list[tuple[int, KeyFrame | None]] = [(0, None)] * layers
        """Of each layer, how many segments its frame is of, and the frame."""

    def prepare(self, model: ModelInfo) -> None:
        """Measure the model's queries, before any pass of it needs a frame."""
        if self._scaled:
            purpose = "by which the dimensions of sketches are weighed"
            self._queries = model.measured("queries", model.measure_queries, purpose)

    def of(self, layer: LayerView, n: int) -> KeyFrame:
        """The frame of the stored keys of the first n segments, where n is one of `STAGES`."""
        store, column, i, stop = layer.store, self._column, layer.index, n * SEGMENT
        parts = None
        if column.filled[i] >= stop:  # nothing has been overwritten since
            known = self.known[i]
            if known[0] == n and known[1] is not None:
                return known[1]
            parts = self._stored(i, n)
            if parts is None:
                column.restart()
        if parts is None:
            centre, variance = layer.device.select.key_moments(
                store.segments(i), store.layout, store.n_kv_heads, N_FIRST, stop
            )
            parts = centre, scales_of(self._queries[i], variance)
            self._store(i, n, parts)
            column.filled[i] = max(stop, column.filled[i])
        centre, scales = parts
        padded = self._device.select.Frame.of(centre, scales)
        frame = KeyFrame(self._device.put(centre), padded)
        self.known[i] = n, frame
        return frame

    def saved(self, layer: int, n: int) -> Frame | None:
        """The frame of a layer's first n segments as it is stored; None where it is not."""
        filled = self._column.filled[layer] >= n * SEGMENT
        parts = self._stored(layer, n) if filled else None
        return None if parts is None else self._device.select.Frame.of(*parts)

    def mark_skipped(self, layer: LayerView, stored: int) -> None:
        """Mark the frame of a layer that needs none as written: see `Column`."""
        filled = self._column.filled
        filled[layer.index] = max(averaged(stored) * SEGMENT, filled[layer.index])

    def _stored(self, i: int, n: int) -> tuple[F32, F32] | None:
        """Centre and scales that the column holds; None if their digest is wrong."""
        n_heads, head_dim = self._shape
        items = self._device.read_items(self._place(i, n), n_heads, self._column.item_bytes)
        records = items.reshape(n_heads, -1)[:, : 8 * head_dim + _DIGEST]
        numbers = records[:, : 8 * head_dim].copy().view("<f4").astype(np.float32)
        parts = numbers[:, :head_dim], numbers[:, head_dim:]
        return parts if np.array_equal(records, _encode(parts)) else None

    def _store(self, i: int, n: int, parts: tuple[F32, F32]) -> None:
        records, size = _encode(parts), SEGMENT * self._column.item_bytes
        items = np.zeros((len(records), size), np.uint8)
        items[:, : records.shape[1]] = records
        self._device.write_items(self._place(i, n), items.reshape(len(items), SEGMENT, -1))

    def _place(self, i: int, n: int) -> Places:
        """The segment of the column that has the frame of n segments."""
        return self._column.segments(i)[n - 1 : n]


def scales_of(queries: F32, variance: F32) -> F32:
    """s of the mean squares of queries and the variance of keys, (J, E) each; 1 where keys or
    queries of a KV head do not differ from 0, as where no queries were measured."""
    q, v = queries.astype(np.float64), variance.astype(np.float64)
    parts = [x + SHARE * x.mean(1, keepdims=True) for x in (q, v)]
    usable = np.all([np.isfinite(x).all(1) & (x.min(1) > 0) for x in parts], 0)[:, None]
    wanted, spread = (np.where(usable, x, 1.0) for x in parts)
    scales = (wanted / spread) ** 0.25
    scales *= np.sqrt(spread.mean(1) / (scales * scales * spread).mean(1))[:, None]
    return np.where(usable, scales, 1.0).astype(np.float32)


def _encode(parts: tuple[F32, F32]) -> U8:
    """The bytes of centre and scales in the column, uint8 (J, 8 E + 8)."""
    rows = [row.tobytes() for row in np.concatenate(parts, 1).astype("<f4")]
    return np.array([list(row + xxhash.xxh3_64_digest(row)) for row in rows], np.uint8)
