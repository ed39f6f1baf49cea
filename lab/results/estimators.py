"""Estimates of attention that no method of kvarn gives: from oracles, and by LSH without a centre.

Each takes one head's scores s = q · k · scale (n,) and values (n, E), and returns its output (E,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]


def softmax(scores: F32) -> F64:
    """float64 weights (n,)."""
    weights = np.exp(scores.astype(np.float64) - scores.max())
    found: F64 = weights / weights.sum()
    return found


def exact_top(weights: F64, m: int) -> NDArray[np.bool_]:
    """The tokens (n,) that a group of heads reads, where each chooses as many of its largest
    weights, and all that any of them chose are at most m (one for each head at least).

    weights: (G, n), of the heads that share K and V. One head reads m.
    """
    rank = np.argsort(np.argsort(-weights, axis=1), axis=1).min(axis=0)
    k = max(1, int(np.sort(rank)[m])) if m < len(rank) else len(rank)
    found: NDArray[np.bool_] = rank < k
    return found


def softmax_over(chosen: NDArray[np.bool_], weights: F64, values: F32) -> F64:
    """Attention to the chosen tokens alone: MagicPIG, equation 3."""
    found: F64 = weights[chosen] @ values[chosen] / weights[chosen].sum()
    return found


def oracle_sample(weights: F64, values: F32, m: int, rng: np.random.Generator) -> F64:
    """The mean value of m draws with replacement by their weights: MagicPIG, section 3.2."""
    counts = rng.multinomial(m, weights / weights.sum())
    found: F64 = counts @ values / m
    return found


class PlainTables:
    """K x L random planes over keys as they are: MagicPIG without its centre (figure 8a).

    A key is drawn that agrees with the query in all K signs in at least two of L tables; its weight
    is divided by the probability u of that: p = 1 - θ / π, u = 1 - (1 - p^K)^L - L p^K
    (1 - p^K)^(L-1).
    """

    def __init__(self, bits: int, number: int, head_dim: int, seed: int) -> None:
        self.bits, self.number = bits, number
        rng = np.random.default_rng(seed)
        self._planes = rng.standard_normal((head_dim, bits * number)).astype(np.float32)

    def codes(self, vectors: F32) -> NDArray[np.uint16]:
        """(n, L): the signs of the K projections of each table."""
        signs = (vectors @ self._planes > 0).reshape(len(vectors), self.number, self.bits)
        powers = (1 << np.arange(self.bits)).astype(np.uint16)
        found: NDArray[np.uint16] = (signs * powers).sum(2).astype(np.uint16)
        return found

    def estimate(
        self, q: F32, keys: F32, codes: NDArray[np.uint16], scores: F32, values: F32,
        always: NDArray[np.bool_],
    ) -> tuple[F64, NDArray[np.bool_]]:  # fmt: skip
        """The output, and which tokens were read; `always`: those read whatever they hash to."""
        drawn = ((codes == self.codes(q[None])).sum(1) >= 2) & ~always
        lengths = np.linalg.norm(keys[drawn], axis=1) * np.linalg.norm(q)
        cosine = np.clip(keys[drawn] @ q / np.maximum(lengths, 1e-12), -1, 1)
        hit = (1 - np.arccos(cosine.astype(np.float64)) / np.pi) ** self.bits
        miss = 1 - hit
        u = 1 - miss**self.number - self.number * hit * miss ** (self.number - 1)
        logits = np.concatenate([scores[always], scores[drawn] - np.log(np.maximum(u, 1e-12))])
        weights = softmax(logits.astype(np.float32))
        found: F64 = weights @ np.concatenate([values[always], values[drawn]])
        return found, always | drawn
