"""Attention in which every token of a text reads every other: softmax(q k^T / sqrt(E)) v.

In NumPy: texts are short, so matrices of scores are small, and texts of one length are one
operation. Threads share the texts; NumPy lets others run while it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32

_MOST_SCORES = 1 << 16
"""Scores that one thread has in memory at a time (256 KiB, which caches hold)."""
_LARGE = 60.0
"""Scores up to this size need no maximum subtracted: their exponentials, and sums of them, are
floats of full precision."""

Span = tuple[int, int, int]
"""First row, texts, tokens of each: texts of one length, one behind the other."""


def spans_of(lengths: Sequence[int]) -> list[Span]:
    """The runs of texts of one length."""
    spans, first = [], 0
    for length, run in groupby(lengths):
        n = sum(1 for _ in run)
        spans.append((first, n, length))
        first += n * length
    return spans


def attend(
    qkv: tuple[F32, F32, F32], spans: Sequence[Span], window: int, n_threads: int, out: F32
) -> None:
    """Attention within each text.

    qkv: float32 (N, H, E) and two (N, J, E), whose heads are read by H / J queries' heads each: the
    rows of all texts one behind the other, as `spans` cuts them.
    window: a token reads those that are at most window // 2 before or after it; 0: all.
    out: float32 (N, H, E).
    """
    tasks = [part for span in spans for part in _parts(span, qkv[0].shape[1])]

    def run(part: tuple[Span, int, int]) -> None:
        _attend(qkv, part, window, out)

    if n_threads < 2 or len(tasks) < 2:
        for task in tasks:
            run(task)
        return
    for _ in _pool(n_threads).map(run, tasks):
        pass


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "kvarn-attend")


def _parts(span: Span, n_heads: int) -> Iterator[tuple[Span, int, int]]:
    """A span in parts of at most `_MOST_SCORES`: some texts, or some queries of one text."""
    first, n_texts, length = span
    texts = _MOST_SCORES // (n_heads * length * length)
    if texts:
        for start in range(0, n_texts, texts):
            n = min(texts, n_texts - start)
            yield (first + start * length, n, length), 0, length
        return
    queries = max(1, _MOST_SCORES // (n_heads * length))
    for text in range(n_texts):
        for start in range(0, length, queries):
            yield (first + text * length, 1, length), start, min(start + queries, length)


def _attend(qkv: tuple[F32, F32, F32], part: tuple[Span, int, int], window: int, out: F32) -> None:
    """Attention of queries start … stop - 1 of each of some texts of one length."""
    (first, n_texts, length), start, stop = part
    n_kv_heads, head_dim = qkv[1].shape[1:]

    def by_head(x: F32) -> F32:
        """(texts, J, H / J, tokens, E)."""
        rows = x[first : first + n_texts * length]
        shape = n_texts, length, n_kv_heads, -1, head_dim
        return rows.reshape(shape).transpose(0, 2, 3, 1, 4)

    q, k, v = map(by_head, qkv)
    scores = np.matmul(q[..., start:stop, :] * np.float32(head_dim**-0.5), k.swapaxes(-1, -2))
    large = max(scores.max(), -scores.min()) > _LARGE
    if window and length > window // 2 + 1:
        distance = np.arange(length) - np.arange(start, stop)[:, None]
        scores[..., np.abs(distance) > window // 2] = -np.inf
    if large:
        scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    # A column of ones beside the values gives the sums, in the same product.
    values = np.empty((*v.shape[:-1], head_dim + 1), np.float32)
    values[..., :-1], values[..., -1] = v, 1
    mixed = np.matmul(scores, values)
    np.divide(mixed[..., :-1], mixed[..., -1:], out=by_head(out)[..., start:stop, :])


def rotation(positions: NDArray[np.int64], base: float, n_rot: int) -> F32:
    """float32 (N, n_rot): cosines, then sines, of angles positions[t] * base^(-2i / n_rot)."""
    angles = positions[:, None] * base ** (-np.arange(0, n_rot, 2) / n_rot)
    table: F32 = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    return table
