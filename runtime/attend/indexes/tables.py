"""Hash tables of the stored keys, from which tokens are drawn (LSH sampling)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ....ops.arrays import F32
from ....ops.attention.layout import SEGMENT, n_segments
from ....ops.select import (
    DrawScratch,
    Hashing,
    Range,
    Tables,
    TableStore,
    Wanted,
    draw,
    hash_keys,
    sort_runs,
    table_planes,
)
from ....ops.select.tables.planes import RUN
from ....system.spelling import spelt
from ...loading.model_info import ModelInfo
from ...memory import human_bytes
from ...store import Column, KVStore
from ..base import AttendError, LayerView
from ..losses import MAGICPIG
from ..sparse import SEED, CentredIndex, Chosen
from ..sparse.frame import STAGES, KeyFrame, averaged


class TableIndex(CentredIndex):
    """K x L planes per layer; the codes of every stored key less the centre c, in L hash tables.

    Column `tables-KxL-SEED-cN`. It is filled by runs of 16 segments, whose codes are sorted into
    tables; those of later tokens are there, too, but computed again when a pack is opened.
    """

    weighs = True
    scaled: ClassVar[bool] = False
    notices = (f"method {MAGICPIG.line('topk reads less and loses less')}",)

    def __init__(
        self,
        model: ModelInfo,
        store: KVStore,
        tables: Tables,
        most_bytes: int | None,
        seed: int = SEED,
    ) -> None:
        self._config = config = model.config
        self._tables, self._most_bytes = tables, most_bytes
        self._seed, self._name = seed, f"tables-{tables.bits}x{tables.number}-{seed}"
        super().__init__(model, store, {self._name: tables.item_bytes})
        self._coded = np.zeros(config.n_kv_layers, np.int64)
        self._hashings: dict[int, Hashing] = {}

    def prepare(self, n_ctx: int, k: int) -> None:
        super().prepare(n_ctx, k)
        self._check_bytes(n_ctx)
        config, tables = self._config, self._tables
        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = DrawScratch(heads, kv_heads, n_ctx, tables, self._store.layout)
        # Load the kernel now: it is first needed after 16,384 tokens, when nobody wants to wait.
        sort_runs(tables, kv_heads, np.empty(0, np.int64), 0, 0)

    def _check_bytes(self, n_ctx: int) -> None:
        config, store, tables = self._config, self._store, self._tables
        each = SEGMENT * config.n_kv_layers * config.n_kv_heads * tables.item_bytes
        needed = n_segments(n_ctx) * each
        if self._most_bytes is not None:
            allowed, whose = self._most_bytes, f"{spelt('index_bytes')} {self._most_bytes}"
        else:
            free = store.free_bytes
            saved = max(store.saved_items(f"{self._name}-c{n}") for n in STAGES)
            allowed = free // 2 + saved // SEGMENT * each
            whose = f"half of the {human_bytes(free)} that are free"
        if needed <= allowed:
            return
        raise AttendError(
            f"hash tables {tables.bits}x{tables.number} of a context of {n_ctx:,} tokens need "
            f"{needed:,} bytes ({human_bytes(needed)}), more than {whose}: use fewer tables, such "
            f"as {spelt('tables')} 8x75, a smaller {spelt('ctx')}, or a larger "
            f"{spelt('index_bytes')}"
        )

    def update(self, layer: LayerView, start: int, stop: int) -> None:
        i, stage = layer.index, self._stages[layer.index]
        n = averaged(stop)
        self._enter(layer, n)
        if not n:
            return
        (column,) = self.columns(layer)
        filled = int(column.filled[i])
        if filled % RUN:  # tokens of a sorted run have been overwritten
            filled = self._unsort(column, filled // RUN * RUN)
        # Those before have codes, unless their centre is another one now.
        first = min(int(self._coded[i]), start) if n == stage and start >= n * SEGMENT else 0
        first = max(first, filled)
        self.extend(layer, first, stop)
        self._coded[i], column.filled[i] = stop, stop // RUN * RUN

    def _unsort(self, column: Column, first: int) -> int:
        """Drop the tables of the run that begins with token `first`, and of those after it."""
        column.restart(first)
        np.minimum(self._coded, first, out=self._coded)
        return first

    def add(
        self, layer: LayerView, frame: KeyFrame, columns: list[Column], first: int, stop: int
    ) -> None:
        i, store, items = layer.index, layer.store, columns[0].segments(layer.index)
        hash_keys(
            self._hashing(i, frame.centre), store.segments(i), store.layout, items, first, stop
        )
        n_sorted = int(columns[0].filled[i]) // RUN
        sort_runs(self._tables, store.n_kv_heads, items, n_sorted, stop // RUN)

    def _hashing(self, i: int, centre: F32) -> Hashing:
        """What keys and queries of layer i are hashed with."""
        known = self._hashings.get(i)
        if known is None:
            planes = table_planes(self._config.head_dim, self._tables, (self._seed, i))
            self._hashings[i] = known = Hashing(self._tables, planes, centre)
        elif known.centre is not centre:
            self._hashings[i] = known = replace(known, centre=centre)
        return known

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        i, (column,) = layer.index, self.columns(layer)
        centre = self._frames.of(layer, self._stages[i]).centre
        stored = TableStore(
            layer.store.segments(i), column.segments(i), int(column.filled[i]) // RUN
        )
        return draw(
            q, self._hashing(i, centre), stored, among, chosen.lists, chosen.counts,
            chosen.log_weights, scratch=self._scratch,
        )  # fmt: skip
