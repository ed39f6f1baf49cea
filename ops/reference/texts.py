"""Attention in texts in plain NumPy, in float64, token by token."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..arrays import F32


def text_attention(
    qkv: tuple[F32, F32, F32], lengths: Sequence[int], window: int
) -> NDArray[np.float64]:
    """See `ops.attention.texts.api.text_attention`; lengths: tokens of each text."""
    q, k, v = (x.astype(np.float64) for x in qkv)
    out, group, first = np.empty_like(q), q.shape[1] // k.shape[1], 0
    for n in lengths:
        for t in range(first, first + n):
            near = range(max(first, t - window // 2), min(first + n, t + window // 2 + 1))
            keys = slice(near.start, near.stop) if window else slice(first, first + n)
            for h in range(q.shape[1]):
                scores = k[keys, h // group] @ q[t, h] / np.sqrt(q.shape[2])
                weights = np.exp(scores - scores.max())
                out[t, h] = weights @ v[keys, h // group] / weights.sum()
        first += n
    return out
