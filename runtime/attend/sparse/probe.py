"""Coverage: the share of the softmax's mass that the attended tokens have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ...store import KVStore
    from ..base import F32, I64, U32, LayerView


class MassProbe:
    """Reads all keys of a layer to measure how much of the softmax a list of tokens covers."""

    def __init__(self, config: ModelConfig, store: KVStore, n_ctx: int) -> None:
        from ....ops.select import ExactScratch

        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = ExactScratch(heads, kv_heads, n_ctx, 1, store.layout)
        self._group = heads // kv_heads

    def __call__(self, layer: LayerView, q: F32, stop: int, lists: U32, counts: I64) -> float:
        """Mean over the query heads of the coverage of tokens 0 … stop - 1 by the listed ones."""
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
        listed = [tokens[:n] for tokens, n in zip(lists, counts)]
        covered = [
            row[listed[h // self._group]].sum(dtype=np.float64) / row.sum(dtype=np.float64)
            for h, row in enumerate(mass)
        ]
        return float(np.mean(covered))
