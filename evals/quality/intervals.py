"""Confidence intervals of scores whose questions share contexts.

Questions about one context are not independent: the context may be an easy or a hard one. So the
contexts are the sampled units (clusters), and C contexts give C - 1 degrees of freedom.

Several tasks are strata, whose contexts are drawn independently: the mean over T tasks is the mean
of their means, and its variance the sum of theirs, over T². Its degrees of freedom are those of
Satterthwaite (1946), (Σ v)² / Σ (v² / (C - 1)) with the variances v of the tasks.
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


def t_quantile(degrees: int) -> float:
    """The t with a probability of `CONFIDENCE` between -t and t."""
    probability = 0.5 + CONFIDENCE / 2
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return high


def mean(clusters: Clusters) -> float:
    """The mean over all questions."""
    return sum(map(sum, clusters)) / sum(map(len, clusters))


def variance(clusters: Clusters, centre: float) -> float:
    """The variance of the mean over all questions, robust to clusters.

    C / (C - 1) · Σ_c (Σ_i (s_ci - centre))² / n². Source: Liang & Zeger 1986 with the usual
    correction for few clusters; without it the clustered error of Miller 2024 (Adding Error Bars
    to Evals).
    """
    n, c = sum(map(len, clusters)), len(clusters)
    return c / (c - 1) * sum((sum(s) - len(s) * centre) ** 2 for s in clusters) / n**2


def score_interval(*tasks: Clusters) -> Interval | None:
    """95% interval of a mean score in [0, 1], over the tasks with equal weights; None where one of
    them has fewer than two contexts, which tell nothing about the spread.

    Wilson's interval with t of C - 1 degrees for z, and the effective sample size
    m = min(n, p (1 - p) / variance) for n, so that it has a width at 0 and 1 too. Source: Korn &
    Graubard 1998 for m; Franco et al. 2019 for Wilson's interval with it. Scores between 0 and 1
    vary less than p (1 - p), which the bound by n allows for. Of several tasks, n is what would
    give their mean with equal weights the same variance: T² / Σ 1 / n_t.

    It covers the true score in 95% of cases while failures are spread over contexts. Where nearly
    all contexts are perfect and a rare one fails completely, a few contexts do not show it, and the
    interval is too short.
    """
    if any(len(task) < 2 for task in tasks):
        return None
    p = sum(map(mean, tasks)) / len(tasks)
    spreads = [variance(task, mean(task)) for task in tasks]
    spread = sum(spreads) / len(tasks) ** 2
    n = len(tasks) ** 2 / sum(1 / sum(map(len, task)) for task in tasks)
    m = min(n, p * (1 - p) / spread) if spread > 0 else n
    t = t_quantile(_degrees(tasks, spreads))
    centre = (p + t * t / (2 * m)) / (1 + t * t / m)
    half = t / (1 + t * t / m) * math.sqrt(p * (1 - p) / m + (t / (2 * m)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def difference_interval(*tasks: Clusters) -> Interval | None:
    """95% interval of a mean paired difference in [-1, 1], over the tasks with equal weights; None
    where one of them has fewer than two contexts.

    tasks: for each context and question the one method's score less the other's. A t interval
    of C - 1 degrees, robust to clusters, after two differences, +1 and -1, have been added to each
    task as contexts of their own, so that it has a width where no answer differs. Source: Bonett &
    Price 2012 for the two; `variance` for the clusters.
    """
    if any(len(task) < 2 for task in tasks):
        return None
    centres, spreads = [], []
    for task in tasks:
        n = sum(map(len, task))
        centre = sum(map(sum, task)) / (n + PSEUDO)
        added = (1 - centre) ** 2 + (1 + centre) ** 2
        centres.append(centre)
        spreads.append((variance(task, centre) * n**2 + added) / (n + PSEUDO) ** 2)
    centre = sum(centres) / len(tasks)
    half = t_quantile(_degrees(tasks, spreads)) * math.sqrt(sum(spreads)) / len(tasks)
    return max(-1.0, centre - half), min(1.0, centre + half)


def _degrees(tasks: Sequence[Clusters], variances: Sequence[float]) -> int:
    """Degrees of freedom of the mean over the tasks, rounded down; where nothing varies, those of
    contexts drawn in strata: contexts less tasks."""
    if not any(variances):
        return sum(len(task) - 1 for task in tasks)
    top = max(variances)
    shares = [each / top for each in variances]
    below = sum(share**2 / (len(task) - 1) for share, task in zip(shares, tasks))
    return int(sum(shares) ** 2 / below + 1e-9)
