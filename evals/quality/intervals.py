"""Confidence intervals of scores whose questions share contexts.

Questions about one context are not independent: the context may be an easy or a hard one. So the
contexts are the sampled units (clusters), and C contexts give C - 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Interval = tuple[float, float]
Clusters = Sequence[Sequence[float]]
"""The scores of each context's questions."""

CONFIDENCE = 0.95
PSEUDO = 2
"""Differences added to a comparison: +1 and -1, each as a context of its own."""


def t_cdf(t: float, degrees: int) -> float:
    """P(T <= t) of Student's t with a whole number of degrees of freedom.

    A finite sum in cos² of arctan(t / √degrees): Abramowitz & Stegun 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for i in range(degrees // 2):
        total += term
        term *= cosine * cosine * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    within = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return 0.5 + within / 2


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t with a probability of `confidence` between -t and t."""
    wanted = 0.5 + confidence / 2
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < wanted:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < wanted else (low, middle)
    return high


def mean(clusters: Clusters) -> float:
    """The mean over all questions."""
    return sum(map(sum, clusters)) / sum(map(len, clusters))


def variance(clusters: Clusters, centre: float) -> float:
    """Of the mean over all questions, robust to clusters.

    C / (C - 1) · Σ_c (Σ_i (s_ci - centre))² / n². Source: Liang & Zeger 1986 with the usual
    correction for few clusters; without it the clustered error of Miller 2024 (Adding Error Bars
    to Evals).
    """
    n, c = sum(map(len, clusters)), len(clusters)
    return c / (c - 1) * sum((sum(s) - len(s) * centre) ** 2 for s in clusters) / n**2


def score_interval(clusters: Clusters) -> Interval | None:
    """95% interval of a mean score in [0, 1]; None for fewer than two contexts, which say nothing
    about the spread.

    Wilson's interval with t of C - 1 degrees for z, and the effective sample size
    m = min(n, p (1 - p) / variance) for n, so that it has a width at 0 and 1 too. Source: Korn &
    Graubard 1998 for m; Franco et al. 2019 for Wilson's interval with it. Scores between 0 and 1
    vary less than p (1 - p), which the bound by n allows for.

    It covers the true score in 95% of cases while failures are spread over contexts. Where nearly
    all contexts are perfect and a rare one fails completely, a few contexts do not show it, and the
    interval is too short.
    """
    if len(clusters) < 2:
        return None
    n, p = sum(map(len, clusters)), mean(clusters)
    spread = variance(clusters, p)
    m = min(n, p * (1 - p) / spread) if spread > 0 else n
    t = t_quantile(len(clusters) - 1)
    centre = (p + t * t / (2 * m)) / (1 + t * t / m)
    half = t / (1 + t * t / m) * math.sqrt(p * (1 - p) / m + (t / (2 * m)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def difference_interval(clusters: Clusters) -> Interval | None:
    """95% interval of a mean paired difference in [-1, 1]; None for fewer than two contexts.

    clusters: for each context and question the one method's score less the other's. A t interval
    of C - 1 degrees, robust to clusters, after two differences, +1 and -1, have been added as
    contexts of their own, so that it has a width where no answer differs. Source: Bonett & Price
    2012 for the two; `variance` for the clusters.
    """
    if len(clusters) < 2:
        return None
    n = sum(map(len, clusters))
    centre = sum(map(sum, clusters)) / (n + PSEUDO)
    added = (1 - centre) ** 2 + (1 + centre) ** 2
    spread = (variance(clusters, centre) * n**2 + added) / (n + PSEUDO) ** 2
    half = t_quantile(len(clusters) - 1) * math.sqrt(spread)
    return max(-1.0, centre - half), min(1.0, centre + half)
