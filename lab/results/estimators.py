"""Estimates of attention that no method of kvarn gives: from oracles, and by LSH without a centre.

Each takes one head's scores s = q · k · scale (n,) and values (n, E), and returns its output (E,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvarn.ops.arrays import F32, F64, I64

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def drawn_probability(cosine: F32 | F64, bits: int, number: int) -> F64:
    """u, that a key at this cosine of the query agrees with it in two tables or more: MagicPIG,
    equation 10."""
    hit = (1 - np.arccos(np.clip(cosine, -1, 1).astype(np.float64)) / np.pi) ** bits
    miss = 1 - hit
    found: F64 = 1 - miss**number - number * hit * miss ** (number - 1)
    return np.maximum(found, 1e-12)


def capped(a: F64, m: float) -> F64:
    """Probabilities min(1, c a), with c such that m tokens are drawn on average."""
    if np.count_nonzero(a) <= m:
        found: F64 = (a > 0).astype(np.float64)
        return found
    falling = np.sort(a)[::-1]
    left = falling.sum() - np.concatenate([[0.0], np.cumsum(falling)[:-1]])
    c = (m - np.arange(len(a))) / np.maximum(left, 1e-300)  # if so many have probability 1
    certain = int(np.argmax(c * falling <= 1))
    found = np.minimum(1.0, c[certain] * a)
    return found


class Blocks:
    """Blocks of 32 similar keys among each 1,024, their mean keys and values: halves of halves,
    by projections on the direction in which the keys differ most (`ops.select.means.order`)."""

    def __init__(self, keys: F32, values: F32, size: int = 32, segment: int = 1024) -> None:
        parts = [
            np.arange(i, i + segment) for i in range(0, len(keys) // segment * segment, segment)
        ]
        while parts and len(parts[0]) > size:
            parts = [half for part in parts for half in _halves(keys, part)]
        self.of = np.full(len(keys), -1)
        for number, part in enumerate(parts):
            self.of[part] = number
        self.keys = np.array([keys[part].mean(0, dtype=np.float64) for part in parts])
        self.values = np.array([values[part].mean(0, dtype=np.float64) for part in parts])

    def counts(self, tokens: NDArray[np.bool_], times: F64 | None = None) -> F64:
        """How many tokens of each block are among these (n,), each counted so many `times`."""
        n = min(len(self.of), len(tokens))
        places = np.flatnonzero(tokens[:n] & (self.of[:n] >= 0))
        weights = None if times is None else times[places]
        return np.bincount(self.of[places], weights, len(self.keys)).astype(np.float64)


def _halves(keys: F32, part: I64) -> list[I64]:
    """A part split at the median of its projections."""
    x = keys[part] - keys[part].mean(0)
    direction = x[np.argmax((x**2).sum(1))]
    for _ in range(2):
        direction = x.T @ (x @ direction)
        direction /= max(float(np.linalg.norm(direction)), 1e-20)
    order = np.argsort(-(x @ direction), kind="stable")
    return [part[order[: len(part) // 2]], part[order[len(part) // 2 :]]]


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
        u = drawn_probability(cosine, self.bits, self.number)
        logits = np.concatenate([scores[always], scores[drawn] - np.log(np.maximum(u, 1e-12))])
        weights = softmax(logits.astype(np.float32))
        found: F64 = weights @ np.concatenate([values[always], values[drawn]])
        return found, always | drawn
