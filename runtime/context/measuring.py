"""Measure the mean keys and the queries of a model, by tokens that are drawn at random.

`store.centre` subtracts the first from keys in 4 bits, `attend.sparse.frame` scales sketches by the
second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...ops.arrays import F32, F64
from ..attend.full import Full, FullAttention
from ..cache import Axes, open_cache
from ..store import Ram
from .reading.token_reader import TokenReader

if TYPE_CHECKING:
    from ...models.passes.transformer import Transformer
    from ...ops.device import Array
    from ..attend import Attend, LayerView
    from ..cache import KVCache
    from ..loading.model_info import ModelInfo
    from ..store import KVStore


N_TOKENS, N_FIRST = 256, 4
"""Tokens that are read, and how many first ones do not count: they are unlike the rest."""
SEED = 20_240_517


def measured_keys(model: ModelInfo, transformer: Transformer) -> F32:
    """Mean keys after rope, float32 (layers, J, E), of tokens drawn at random."""
    cache, n = _read(model, transformer, Full())
    store = cache.store
    layers = (
        store.device.read_kv(
            store.segments(i), store.layout, store.n_kv_heads, min(N_FIRST, n - 1), n
        )[0]
        for i in range(store.n_layers)
    )
    return np.stack([keys.mean(0) for keys in layers])


def measured_queries(model: ModelInfo, transformer: Transformer) -> F32:
    """Mean squares of the queries of each KV head, float32 (layers, J, E), of the same tokens.

    Layers that read the same keys have the mean of theirs; layers with a window whose heads differ
    from `ModelConfig.head_dim` have zeros: nothing is chosen in them. Of the two dimensions that
    rope rotates together both have their mean: other positions rotate one into the other.
    """
    config = model.config
    watch = _ObservedFull(np.zeros((config.n_kv_layers, config.n_kv_heads, config.head_dim)))
    _read(model, transformer, watch)
    squares = watch.sums
    for row, layer in zip(squares, config.kv_layers, strict=True):
        if layer.rope is not None and layer.head_dim == config.head_dim:
            n = layer.rope.n_rot
            first, second = np.arange(0, n, 2), np.arange(1, n, 2)
            if config.architecture.rope == "neox":
                first, second = np.arange(n // 2), np.arange(n // 2, n)
            row[:, first] = row[:, second] = (row[:, first] + row[:, second]) / 2
    readers = np.array([config.kv_numbers.count(i) for i in range(config.n_kv_layers)])
    means: F32 = (squares / (N_TOKENS * readers[:, None, None])).astype(np.float32)
    return means


def _read(model: ModelInfo, transformer: Transformer, attend: Attend) -> tuple[KVCache, int]:
    """A cache that holds the tokens, and how many they are."""
    n = min(N_TOKENS, model.config.n_ctx_train)
    ids = np.random.default_rng(SEED).integers(0, model.config.n_vocab, n).tolist()
    cache = open_cache(model, n, transformer.max_chunk, Axes(Ram(), attend=attend))
    reader = TokenReader(transformer, cache, model.tell)
    for chunk in reader.chunks(ids):
        reader.forward(chunk)  # all rows: the last layer computes queries of those alone
    return cache, n


@dataclass(frozen=True)
class _ObservedFull(Full):
    """Full attention that adds up, in `sums` (layers, J, E), the squares of the queries of each KV
    head, which are the means over its query heads."""

    sums: F64

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> FullAttention:
        return _ObservedAttention(self.sums)


class _ObservedAttention(FullAttention):
    records = False

    def __init__(self, sums: F64) -> None:
        self._sums = sums

    def attend_prompt(self, layer: LayerView, q: Array, start: int, out: Array) -> None:
        sums = self._sums[layer.index]
        if (layer.config.n_kv_heads, layer.config.head_dim) == sums.shape:
            rows = layer.device.get(q)[max(N_FIRST - start, 0) :].astype(np.float64)
            sums += (rows * rows).sum(0).reshape(len(sums), -1, rows.shape[-1]).mean(1)
        super().attend_prompt(layer, q, start, out)
