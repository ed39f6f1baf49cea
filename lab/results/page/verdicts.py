"""What a measurement says about a claim: decided by its interval, never by its point.

reproduced: the whole 95% interval is within the claim's bounds. refuted: none of it is. else it
cannot be told. Nothing is concluded from cells in which full attention answers less than LEAST,
from contrasts of arms that all answer next to nothing or all nearly everything, nor from fewer
contexts than the plan names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from kvarn.evals.quality.intervals import Interval, difference_interval, mean, t_quantile, variance

from ..plan import ANSWERS, LAYERS, LOST, STUDIES

if TYPE_CHECKING:
    from ..data import Measurement
    from ..plan import Claim, Results, Section

LEAST = 0.60
"""The least score of full attention in a cell that is interpreted."""
FLOOR, CEILING, ALIKE = 0.25, 0.90, 0.01
"""Arms that all score less than FLOOR are not told apart, nor those that all score more than
CEILING and lie within ALIKE."""
FULL = "full"
REPRODUCED, REFUTED, UNTOLD = "reproduced", "refuted", "cannot be told"
OPEN, EARLY = "not measured yet", "not measured to the end"
NOT = "not interpreted: "
WEAK = NOT + "full attention answers too little"
LOW, HIGH = NOT + "all near 0", NOT + "all near 100"


@dataclass(frozen=True)
class Verdict:
    """value: the contrast; interval: of 95%; n: questions, contexts: of all tasks together."""

    word: str
    value: float | None = None
    interval: Interval | None = None
    n: int = 0
    contexts: int = 0
    tasks: tuple[str, ...] = ()


def is_full(arm: str) -> bool:
    """Whether an arm reads all tokens, however its prompts were read."""
    return arm.partition(" prefill ")[0] == FULL


def full_arm(measured: Measurement) -> str:
    """Full attention as the cells name it."""
    return next((cell["arm"] for cell in measured.cells if is_full(cell["arm"])), FULL)


def is_weak(measured: Measurement, task: str, length: int) -> bool:
    """Whether full attention was measured in a cell and answers too little."""
    full = measured.clusters(task, length, full_arm(measured), "score")
    return bool(full) and mean(list(full.values())) < LEAST


def judge(section: Section, claim: Claim, measured: Measurement) -> Verdict:
    """What was measured about a claim, at its length (the section's last, where it names none)."""
    length = claim.length or section.lengths[-1]
    wanted = claim.tasks or section.tasks
    if section.kind in STUDIES and measured.cells:
        wanted = tuple(task for task in wanted if task in measured.tasks(length))
    tasks = [t for t in wanted if not is_weak(measured, t, length)]
    if not tasks:
        return Verdict(WEAK)
    strata: list[list[list[float]]] = []
    for task in tasks:
        pairs = contrast(measured, claim, task, length)
        if len(pairs) < 2:
            return Verdict(OPEN)
        strata.append(pairs)
    value = sum(map(mean, strata)) / len(strata)
    if claim.measure == "score":
        interval = difference_interval(*_bounded(strata, claim))
        scale = _scale(claim)
        if interval is not None:
            interval = interval[0] * scale, interval[1] * scale
    else:
        interval = mean_interval(strata)
    if interval is None:
        return Verdict(OPEN)
    n = sum(len(cluster) for task in strata for cluster in task)
    word = EARLY
    if measured.contexts >= section.contexts:
        word = _edge(measured, claim, tasks, length) or _word(claim, interval)
    return Verdict(word, value, interval, n, sum(map(len, strata)), tuple(tasks))


def gated(results: Results, measured: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Studies of attention without the tasks of which full attention is not known to answer LEAST
    in a section that asks them of the same model at the same length; the others as they are."""
    answered = {
        (section.model, task, length)
        for section in results.sections
        if section.kind == ANSWERS
        for length in measured[section.name].lengths()
        for task in measured[section.name].tasks(length)
        if not is_weak(measured[section.name], task, length)
    }
    found = dict(measured)
    for section in results.sections:
        if section.kind in (LAYERS, LOST):
            cells = [
                cell
                for cell in measured[section.name].cells
                if (section.model, cell["task"], cell["length"]) in answered
            ]
            found[section.name] = replace(measured[section.name], cells=cells)
    return found


def _edge(measured: Measurement, claim: Claim, tasks: Sequence[str], length: int) -> str:
    """LOW or HIGH where a contrast of scores is of arms that all are there; else ""."""
    if claim.measure != "score" or len(claim.contrast) < 2:
        return ""
    levels = [
        fmean(mean(list(measured.clusters(task, length, arm, "score").values())) for task in tasks)
        for arm in claim.contrast
    ]
    if max(levels) < FLOOR:
        return LOW
    return HIGH if min(levels) > CEILING and max(levels) - min(levels) <= ALIKE else ""


def contrast(measured: Measurement, claim: Claim, task: str, length: int) -> list[list[float]]:
    """For each context and question Σ factor · value, over the contexts that all arms have."""
    arms = {arm: measured.clusters(task, length, arm, claim.measure) for arm in claim.contrast}
    shared = sorted(set.intersection(*(set(found) for found in arms.values())))
    return [
        [
            sum(claim.contrast[arm] * value for arm, value in zip(arms, values))
            for values in zip(*(found[context] for found in arms.values()), strict=True)
        ]
        for context in shared
    ]


def _scale(claim: Claim) -> float:
    """How large a contrast can be: that of scores between 0 and 1."""
    factors = claim.contrast.values()
    return max(sum(f for f in factors if f > 0), -sum(f for f in factors if f < 0))


def _bounded(strata: list[list[list[float]]], claim: Claim) -> list[list[list[float]]]:
    """The contrasts divided by the largest possible one, as `difference_interval` expects."""
    scale = _scale(claim)
    return [[[value / scale for value in cluster] for cluster in task] for task in strata]


def mean_interval(strata: Sequence[Sequence[Sequence[float]]]) -> Interval | None:
    """95% t interval of the mean over tasks with equal weights, contexts being the units."""
    if any(len(task) < 2 for task in strata):
        return None
    centre = sum(map(mean, strata)) / len(strata)
    spread = sum(variance(task, mean(task)) for task in strata) / len(strata) ** 2
    half = t_quantile(sum(len(task) - 1 for task in strata)) * math.sqrt(spread)
    return centre - half, centre + half


def _word(claim: Claim, interval: Interval) -> str:
    low = -math.inf if claim.at_least is None else claim.at_least
    high = math.inf if claim.at_most is None else claim.at_most
    if low <= interval[0] and interval[1] <= high:
        return REPRODUCED
    if interval[1] < low or interval[0] > high:
        return REFUTED
    return UNTOLD
