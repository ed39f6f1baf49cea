"""The labels of a query: the tokens it should find; and the keys that a step compares it with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...models.config import ModelConfig
from ...ops.arrays import F32, I64
from ...ops.select import ExactScratch, products
from ...runtime.attend import LayerView
from .observer import Observer, stored_keys
from .settings import Settings

Bools = NDArray[np.bool_]


class Scores:
    """ln(a_t ‖v_t‖) up to a constant: what a token contributes to a query's output.

    Source: HashAttention, lemma 4.1.
    """

    def __init__(self, config: ModelConfig, layer: LayerView, observer: Observer) -> None:
        self.layer, self._norms = layer, observer.log_norms[layer.index]
        self._group = config.n_heads // config.n_kv_heads
        n_ctx = self._norms.shape[1]
        self._scratch = ExactScratch(
            config.n_heads, config.n_kv_heads, n_ctx, 1, layer.store.layout
        )

    def __call__(self, q: F32, stop: int) -> F32:
        """The scores of q float32 (H, E) and the tokens 0 … stop - 1: float32 (H, stop)."""
        out = np.empty((len(q), stop), np.float32)
        segments = self.layer.store.segments(self.layer.index)
        products(np.ascontiguousarray(q)[None], segments, stop, out, scratch=self._scratch)
        out = self.layer.softmax.scores(out)
        out += np.repeat(self._norms[:, :stop], self._group, 0)
        return out


@dataclass(frozen=True)
class Batch:
    """Queries of one layer and the keys they are compared with, J KV heads of G query heads.

    q float32 (H, P, E); keys float32 (J, n, E). positive and allowed (J, G, P, n): the labels, and
    the keys that the query may choose from. weight float32 (J, n): how many keys each stands for,
    1 for a label of any query. candidates (P,): how many tokens each query may choose from.
    """

    q: F32
    keys: F32
    positive: Bools
    allowed: Bools
    weight: F32
    candidates: I64


def make_batch(
    scores: Scores, q: F32, positions: I64, settings: Settings, rng: np.random.Generator
) -> Batch:
    """The labels of queries q float32 (H, P, E) at these positions, and a draw of other keys.

    Each position must leave room for labels between sink and window.
    """
    first, stops = settings.sink, positions + 1 - settings.window
    n_kv_heads = scores.layer.store.n_kv_heads
    shape = n_kv_heads, len(q) // n_kv_heads, len(positions)
    labels = np.empty((*shape, settings.labels), np.int64)
    for i, stop in enumerate(stops):
        candidates = scores(q[:, i], int(stop))[:, first:]
        best = np.argpartition(candidates, -settings.labels, 1)[:, -settings.labels :]
        labels[:, :, i] = first + best.reshape(*shape[:2], -1)
    pool, weight = _pool(labels, first, int(stops.max()), settings.negatives, rng)
    positive = np.zeros((*shape, pool.shape[1]), bool)
    for j in range(n_kv_heads):
        order = np.argsort(pool[j])
        place = order[np.searchsorted(pool[j], labels[j], sorter=order)]
        np.put_along_axis(positive[j], place, True, 2)
    allowed = np.broadcast_to(pool[:, None, None] < stops[:, None], positive.shape)
    return Batch(q, stored_keys(scores.layer, pool), positive, allowed, weight, stops - first)


def _pool(
    labels: I64, first: int, stop: int, negatives: int, rng: np.random.Generator
) -> tuple[I64, F32]:
    """Positions (J, n) of each KV head's labels and of others drawn from first … stop - 1, the same
    number for each head; and how many tokens each position stands for (J, n)."""
    labelled = [np.unique(head) for head in labels]
    n = min(max(map(len, labelled)) + negatives, stop - first)
    pool, weight = np.empty((len(labelled), n), np.int64), np.ones((len(labelled), n), np.float32)
    for j, positions in enumerate(labelled):
        others = np.setdiff1d(np.arange(first, stop), positions, assume_unique=True)
        n_labels, n_drawn = len(positions), n - len(positions)
        pool[j, :n_labels] = positions
        pool[j, n_labels:] = rng.choice(others, n_drawn, replace=False)
        weight[j, n_labels:] = len(others) / max(1, n_drawn)
    return pool, weight
