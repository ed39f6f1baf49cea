"""What follows from the answers of several arms: the k that a task needs, and its entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvarn.evals.quality.intervals import mean

from .verdicts import full_arm, is_weak

if TYPE_CHECKING:
    from ..data import Measurement
    from ..plan import Section

WANTED = 0.95
"""Of full attention's score: top-k attention, table 2."""


def needed_k(
    section: Section, measured: Measurement, length: int
) -> list[tuple[str, int | None, float | None]]:
    """For each task that is interpreted: the least budget from which on all larger ones reach
    WANTED times full attention's score, and the mean entropy of its softmax in nats (probed)."""
    budgets = sorted(
        ((int(arm.budget), str(arm)) for arm in section.arms if arm.budget.isdigit()), reverse=True
    )
    found = []
    for task in measured.tasks(length):
        full = measured.clusters(task, length, full_arm(measured), "score")
        if not full or is_weak(measured, task, length):
            continue
        needed, entropies = None, []
        wanted = WANTED * mean(list(full.values()))
        for k, arm in budgets:
            scores = measured.clusters(task, length, arm, "score")
            if not scores or mean(list(scores.values())) < wanted:
                break
            needed = k
        for _, arm in budgets:
            entropies += [
                v for c in measured.clusters(task, length, arm, "entropy").values() for v in c
            ]
        entropy = sum(entropies) / len(entropies) if entropies else None
        found.append((task, needed, entropy))
    return found


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's; None for fewer than three pairs, or where one of the two does not vary."""
    if len(pairs) < 3:
        return None
    n = len(pairs)
    centre = [sum(column) / n for column in zip(*pairs)]
    x, y = ([pair[i] - centre[i] for pair in pairs] for i in (0, 1))
    scale = math.sqrt(sum(v * v for v in x) * sum(v * v for v in y))
    return sum(a * b for a, b in zip(x, y)) / scale if scale > 0 else None


def render(section: Section, measured: Measurement, length: int) -> str:
    """A Markdown table of the k that each task needs, and the correlation below it."""
    rows = needed_k(section, measured, length)
    if not rows:
        return ""
    lines = [
        "| task | k for 95% of full | of the context | entropy, nats |",
        "|---|---:|---:|---:|",
    ]
    for task, k, entropy in rows:
        share = "" if k is None else f"{100 * k / length:.2g}%"
        said = "more than measured" if k is None else f"{k:,}"
        lines.append(
            f"| {task} | {said} | {share} | {'' if entropy is None else f'{entropy:.2f}'} |"
        )
    pairs = [(float(k), entropy) for _, k, entropy in rows if k is not None and entropy is not None]
    r = correlation(pairs)
    told = "cannot be computed from so few" if r is None else f"{r:.2f} over {len(pairs)} tasks"
    lines.append(f"\nCorrelation of k with entropy: {told} (paper: 0.85 over five kinds, table 3).")
    return "\n".join(lines)
