"""Rows of the table: the score of one arm in one cell, compared with the first arm's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .intervals import Interval, difference_interval, mean, score_interval

if TYPE_CHECKING:
    from .arms import Arm
    from .folder import Answer
    from .plan import Cell

    Contexts = Sequence[Sequence[Sequence[Answer]]]
    """[context][arm]: the answers about the contexts of a task, in order of the questions."""

ALL = "all tasks"
"""What stands for the task in rows over all of them."""


@dataclass(frozen=True)
class Row:
    """One arm's answers to all questions of a cell, or of all tasks at a length.

    score: mean over the questions, 0 to 1; of all tasks, the mean of theirs. ci95: see
    `score_interval`. n, contexts: numbers of questions and contexts. against: the arm whose score
    is subtracted in `difference`, "" for the first. covered, error, read, entropy: means over the
    questions,
    see `Answer`.
    """

    cell: Cell
    arm: Arm
    score: float
    ci95: Interval | None
    n: int
    contexts: int
    covered: float | None
    error: float | None
    read: float | None
    entropy: float | None = None
    against: str = ""
    difference: float | None = None
    difference_ci95: Interval | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        arm = self.arm
        return {
            "task": self.cell.task,
            "length": self.cell.length,
            "question": self.cell.asked,
            "method": arm.method,
            "budget": arm.budget,
            "keep": arm.keep,
            "keep_budget": arm.keep_budget,
            "prefill": arm.prefill,
            "score": self.score,
            "ci95": self.ci95,
            "n": self.n,
            "contexts": self.contexts,
            "against": self.against,
            "difference": self.difference,
            "difference_ci95": self.difference_ci95,
            "covered": self.covered,
            "error": self.error,
            "read": self.read,
            "entropy": self.entropy,
        }

    def __str__(self) -> str:
        interval = f" ({points(self.ci95)})" if self.ci95 else ""
        asked = "" if self.cell.asked == "apart" else f", {self.cell.asked}"
        cell = f"{self.cell.task} at {self.cell.length:,}{asked}"
        return f"{cell}, {self.arm}: {100 * self.score:.1f}{interval}, n = {self.n}"


def points(interval: Interval | None) -> str:
    """An interval in points of 100."""
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def rows_of(cell: Cell, arms: Sequence[Arm], *tasks: Contexts) -> list[Row]:
    """A row for each arm, over one task or several, which then have equal weights."""
    return [_row(cell, arms, i, tasks) for i in range(len(arms))]


def _row(cell: Cell, arms: Sequence[Arm], number: int, tasks: Sequence[Contexts]) -> Row:
    scores = [[[one.score for one in about[number]] for about in task] for task in tasks]
    row = Row(
        cell,
        arms[number],
        _mean(map(mean, scores)),
        score_interval(*scores),
        sum(len(context) for task in scores for context in task),
        sum(map(len, tasks)),
        _mean_of(tasks, number, lambda answer: answer.covered),
        _mean_of(tasks, number, lambda answer: answer.error),
        _mean_of(tasks, number, lambda answer: answer.read),
        _mean_of(tasks, number, lambda answer: answer.entropy),
    )
    if number == 0:
        return row
    pairs = [
        [
            [
                ours.score - theirs.score
                for ours, theirs in zip(about[number], about[0], strict=True)
            ]
            for about in task
        ]
        for task in tasks
    ]
    return replace(
        row,
        against=str(arms[0]),
        difference=_mean(map(mean, pairs)),
        difference_ci95=difference_interval(*pairs),
    )


def _mean_of(
    tasks: Sequence[Contexts], number: int, part: Callable[[Answer], float | None]
) -> float | None:
    """The mean of what is known of an arm's answers, of equal weight in each task."""
    found = []
    for task in tasks:
        values = (part(answer) for about in task for answer in about[number])
        if known := [value for value in values if value is not None]:
            found.append(_mean(known))
    return _mean(found) if found else None


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
