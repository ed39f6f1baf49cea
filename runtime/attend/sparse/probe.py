"""Measures how much a sparse step leaves out: mass of the softmax, and error of the output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....models.config import ModelConfig
from ....ops.arrays import F32, U32
from ....ops.select import ExactScratch
from ...store import KVStore
from ..base import LayerView
from ..full import FullAttention
from ..reads import LayerReads


def scores_of(layer: LayerView, q: F32, stop: int, scratch: ExactScratch) -> F32:
    """Scores of tokens 0 … stop - 1 for one query q (1, H, E), float32 (H, stop); the largest of
    each head is 0, so that their exponentials are its softmax but for a factor."""
    from ....ops.select import products

    scores = np.empty((q.shape[1], stop), np.float32)
    products(q, layer.store.segments(layer.index), stop, scores, scratch=scratch)
    scores = layer.softmax.scores(scores)
    scores -= scores.max(axis=1, keepdims=True)
    return scores


class Probe:
    """Compares attention over lists of tokens with attention over all tokens of a layer."""

    def __init__(self, config: ModelConfig, store: KVStore, n_ctx: int) -> None:
        from ....ops.select import ExactScratch

        heads, kv_heads = config.n_heads, config.n_kv_heads
        self._scratch = ExactScratch(heads, kv_heads, n_ctx, 1, store.layout)
        self._full = FullAttention()
        self._exact = np.empty((1, heads, config.head_dim), np.float32)

    def measure(
        self,
        reads: LayerReads,
        layer: LayerView,
        q: F32,
        position: int,
        lists: Sequence[U32],
        out: F32,
    ) -> None:
        """Compare out (1, H, E), attention of the token at a position over the tokens lists[h] of
        query head h, with exact attention, and add the result to `reads`."""
        covered, entropy = self._covered(layer, q, position + 1, lists)
        reads.probes += 1
        reads.covered_mass += covered
        reads.entropy += entropy
        reads.output_error += self._error(layer, q, position, out)

    def _error(self, layer: LayerView, q: F32, position: int, out: F32) -> float:
        """Mean over the query heads of ‖o - o_full‖ / ‖o_full‖, for out (1, H, E)."""
        self._full(layer, q, position, self._exact)
        norm = np.linalg.norm(self._exact[0], axis=1)
        off = np.linalg.norm(out[0] - self._exact[0], axis=1)
        return float(np.mean(off / np.maximum(norm, np.finfo(np.float32).tiny)))

    def _covered(
        self, layer: LayerView, q: F32, stop: int, lists: Sequence[U32]
    ) -> tuple[float, float]:
        """Means over the query heads: of the share of the softmax over tokens 0 … stop - 1 that
        those of the lists hold, and of its entropy, -Σ p ln p."""
        scores = scores_of(layer, q, stop, self._scratch)
        mass = np.exp(scores)
        sums = mass.sum(axis=1, dtype=np.float64)
        # -Σ p ln p = ln Σ m - Σ m s / Σ m for p = m / Σ m and m = e^s.
        entropy = np.log(sums) - np.einsum("hn,hn->h", mass, scores, dtype=np.float64) / sums
        covered = [row[lists[h]].sum(dtype=np.float64) / sums[h] for h, row in enumerate(mass)]
        return float(np.mean(covered)), float(np.mean(entropy))
