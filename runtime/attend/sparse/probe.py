"""How much of the true softmax the attended tokens hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ....models.config import ModelConfig
    from ...store import KVStore
    from ..base import LayerView

    F32 = NDArray[np.float32]


class MassProbe:
    """Reads all keys of a layer to find the share of the softmax that a list of tokens covers."""

    def __init__(self, config: ModelConfig, store: KVStore, n_ctx: int) -> None:
        from ....ops.select import ExactScratch

        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = ExactScratch(heads, kv_heads, n_ctx, 1, store.layout)
        self._group = heads // kv_heads

    def __call__(
        self,
        layer: LayerView,
        q: F32,
        stop: int,
        lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
    ) -> float:
        """Mean over the query heads of the softmax mass of the listed tokens, of 0 … stop - 1."""
        from ....ops.select import products

        config = layer.config
        scores = np.empty((q.shape[1], stop), np.float32)
        segments = layer.store.segments(layer.index)
        products(q, segments, stop, scores, scratch=self._scratch)
        scores *= np.float32(config.attention_scale)
        if config.attention_softcap:
            scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
        scores -= scores.max(axis=1, keepdims=True)
        mass = np.exp(scores)
        covered = [
            mass[h, lists[j, : counts[j]]].sum(dtype=np.float64) / mass[h].sum(dtype=np.float64)
            for h in range(len(mass))
            for j in (h // self._group,)
        ]
        return float(np.mean(covered))
