"""Exact attention that records what encoders learn from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...models.config import ModelConfig
from ...ops.arrays import F32, I64
from ...ops.attention.layout import SEGMENT, TILE, TILES
from ...ops.reference.attention import read_kv
from ...runtime.attend import Attend, BoundAttend, LayerView
from ...runtime.attend.full import FullAttention
from ...runtime.loading.model_info import ModelInfo
from ...runtime.store import KVStore
from .principal import Moments


@dataclass(frozen=True)
class ObservedFull(Attend):
    """`full`, observed by `observer`, one context at a time."""

    name: ClassVar[str] = "full"
    summary: ClassVar[str] = "every token, and notes what encoders are learned from"

    observer: Observer

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> Observer:
        self.observer.begin(model.config, n_ctx)
        return self.observer


class Observer(BoundAttend):
    """`full`, which records in each layer without a window some queries and ln ‖v‖ of all tokens.

    rows: the queries to record, counted within the next call. queries[layer]: float32 (H, rows, E),
    after rope. log_norms[layer]: float32 (J, n_ctx), of V as stored. moments[layer]: where it is
    not empty, the keys and queries from token `sink` on are counted in it.
    """

    every_query = True

    def __init__(self) -> None:
        self._full = FullAttention()
        self.rows: I64 = np.empty(0, np.int64)
        self.views: dict[int, LayerView] = {}
        self.queries: dict[int, F32] = {}
        self.log_norms: dict[int, F32] = {}
        self.moments: dict[int, Moments] = {}
        self.sink = 0

    def begin(self, config: ModelConfig, n_ctx: int) -> None:
        """Discard the records: a context of `n_ctx` tokens begins."""
        self.log_norms = {
            i: np.zeros((config.n_kv_heads, n_ctx), np.float32)
            for i, layer in enumerate(config.kv_layers)
            if layer.window is None
        }

    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full(layer, q, start, out)
        if layer.index not in self.log_norms:
            return
        store, stop = layer.store, start + len(q)
        segments = store.segments(layer.index)
        keys, values = read_kv(segments, store.layout, store.n_kv_heads, start, stop)
        if self.moments:
            first = max(0, self.sink - start)
            self.moments[layer.index].add(keys[first:], q[first:])
        norms = np.linalg.norm(values, axis=2).T
        self.log_norms[layer.index][:, start:stop] = np.log(np.maximum(norms, 1e-20))
        self.views[layer.index] = layer
        self.queries[layer.index] = q[self.rows].swapaxes(0, 1).copy()


def stored_keys(layer: LayerView, positions: I64) -> F32:
    """Keys as stored, of positions (J, n), which differ by KV head: float32 (J, n, E).

    Gathers their rows into new tiles, then reads these like any others.
    """
    store, layout = layer.store, layer.store.layout
    n_heads, n = positions.shape
    room = -(-n // SEGMENT) * SEGMENT
    size = layout.segment_bytes(n_heads)
    gathered = np.zeros((room // SEGMENT, n_heads, TILES, layout.tile_bytes), np.uint8)
    segments, place = positions // SEGMENT, positions % SEGMENT
    to_segment, to_place = np.divmod(np.arange(n), SEGMENT)
    rows = ((0, layout.k_row_bytes), (layout.scale_offset, layout.scale_row_bytes))
    for number in np.unique(segments):
        address = int(store.segments(layer.index)[number])
        raw = (ctypes.c_uint8 * size).from_address(address)
        tiles = np.frombuffer(memoryview(raw), np.uint8).reshape(n_heads, TILES, layout.tile_bytes)
        head, i = np.nonzero(segments == number)
        old, new = place[head, i], to_place[i]
        for first, n_bytes in rows:
            span = np.arange(n_bytes)
            source = (first + old % TILE * n_bytes)[:, None] + span
            target = (first + new % TILE * n_bytes)[:, None] + span
            gathered[to_segment[i][:, None], head[:, None], (new // TILE)[:, None], target] = tiles[
                head[:, None], (old // TILE)[:, None], source
            ]
    addresses = gathered.ctypes.data + gathered[0].nbytes * np.arange(len(gathered))
    keys, _ = read_kv(addresses, layout, n_heads, 0, n)
    return keys.swapaxes(0, 1).copy()
