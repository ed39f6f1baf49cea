"""Recall: how many of the most important tokens a method finds, on held-out text."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...models.config import ModelConfig
from ...ops.arrays import F32, F64
from ...ops.attention.layout import SEGMENT
from ...ops.reference.attention import read_kv
from ...ops.reference.select import lots_reference, position_hash_reference
from ...runtime.attend import LayerView
from ...runtime.attend.encoders import Encoder
from ...runtime.attend.sparse import SEED
from .labels import Scores
from .settings import Settings

SHARES = (0.01, 0.02)
"""Shares of the candidates: how many are wanted, which is how many a method may choose."""

Ranking = Callable[["F32", int], "NDArray[np.floating]"]
"""(q (H, E), stop) → how well each of the tokens 0 … stop - 1 fits, (H, stop); the most, best."""
RERANKED = ", rerank "
"""In a ranking's name, before a number: so many times the tokens wanted are looked at, as by
`--rerank`, which takes the best of them by their keys."""


@dataclass(frozen=True)
class Recall:
    """Mean share of the true best tokens found, for each of `SHARES`."""

    layer: int
    method: str
    values: tuple[float, ...]


def signatures(encoder: Encoder, config: ModelConfig, layer: LayerView, stop: int) -> Ranking:
    """Rank by the Hamming distance of signatures, as `attend hash` does."""
    store, networks = layer.store, encoder.networks(config, layer.index)
    column = store.column(encoder.name, encoder.bits // 8)
    networks.sign_keys(layer, column, 0, stop)
    dtype = np.dtype(f"<u{column.item_bytes}")
    size = store.n_kv_heads * SEGMENT * column.item_bytes
    parts = []
    for address in column.segments(layer.index):
        raw = (ctypes.c_uint8 * size).from_address(int(address))
        parts.append(np.frombuffer(memoryview(raw), dtype).reshape(store.n_kv_heads, SEGMENT))
    stored = np.concatenate(parts, 1)[:, :stop].astype(np.uint64)
    group = config.n_heads // config.n_kv_heads
    n_lots, positions = 128 // encoder.bits, np.arange(stop)
    last = position_hash_reference(positions, SEED) / np.float64(1 << 32)
    tie = lots_reference(positions, n_lots, SEED) + last

    def rank(q: F32, stop: int) -> NDArray[np.floating]:
        out = np.empty(len(q), np.uint64)
        networks.sign_queries(np.ascontiguousarray(q), out)
        of_head = np.repeat(stored[:, :stop], group, 0)
        return -(n_lots * np.bitwise_count(of_head ^ out[:, None]).astype(int) + tie[:stop])

    return rank


def sketches(n_bytes: int, config: ModelConfig, layer: LayerView, stop: int) -> Ranking:
    """Rank by `topk`'s estimates of q·k from sketches of so many bytes a key: two for the factor,
    and one bit for each of as many random directions as fit, at most head_dim."""
    rng = np.random.default_rng(SEED)
    rotation, _ = np.linalg.qr(rng.standard_normal((config.head_dim, config.head_dim)))
    directions = rotation[:, : 8 * (n_bytes - 2)].astype(np.float32)
    store = layer.store
    segments = store.segments(layer.index)
    keys, _ = read_kv(segments, store.layout, store.n_kv_heads, 0, stop)
    y = keys.swapaxes(0, 1) @ directions
    factors = (y**2).sum(2) / np.maximum(np.abs(y).sum(2), 1e-20)
    estimated = np.where(y > 0, factors[..., None], -factors[..., None])
    group = config.n_heads // config.n_kv_heads

    def rank(q: F32, stop: int) -> NDArray[np.floating]:
        rows = (q @ directions).reshape(-1, group, directions.shape[1])
        out: F32 = rows @ estimated[:, :stop].swapaxes(1, 2)
        return out.reshape(len(q), stop)

    return rank


def measure(
    scores: Scores,
    queries: Iterable[tuple[int, F32]],
    rankings: dict[str, Ranking],
    settings: Settings,
) -> dict[str, F64]:
    """The recall (queries, SHARES) of each ranking, for queries (position, q (H, E)).

    It is the share of the k tokens with the largest a ‖v‖ between sink and window that are among
    the first k of the ranking, or the first `RERANKED` times k: a mean over query heads.
    """
    recalls: dict[str, list[list[float]]] = {name: [] for name in rankings}
    for position, q in queries:
        first, stop = settings.sink, position + 1 - settings.window
        true = scores(q, stop)[:, first:]
        for name, rank in rankings.items():
            ranked = rank(q, stop)[:, first:]
            times = int(name.partition(RERANKED)[2] or 1)
            recalls[name].append([_overlap(true, ranked, share, times) for share in SHARES])
    return {name: np.array(rows) for name, rows in recalls.items()}


def _overlap(
    true: NDArray[np.floating], ranked: NDArray[np.floating], share: float, times: int
) -> float:
    """Share of each row's best k that are among the other's best `times` k, k = share · columns."""
    n = true.shape[1]
    k = max(1, round(share * n))
    marked = []
    for values, count in ((true, k), (ranked, min(times * k, n))):
        marks = np.zeros(values.shape, bool)
        np.put_along_axis(marks, np.argpartition(values, -count, 1)[:, -count:], True, 1)
        marked.append(marks)
    return float((marked[0] & marked[1]).sum(1).mean() / k)
