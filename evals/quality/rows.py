"""Rows of the table: the score of one arm in one cell, compared with the first arm's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .intervals import Interval, difference_interval, mean, score_interval

if TYPE_CHECKING:
    from .arms import Arm
    from .folder import Answer
    from .plan import Cell


@dataclass(frozen=True)
class Row:
    """One arm's answers to all questions of a cell.

    score: mean over the questions, 0 to 1. ci95: see `score_interval`. n, contexts: numbers of
    questions and contexts. against: the arm whose score is subtracted in `difference`, "" for the
    first. covered, error, read: means over the questions, see `Answer`.
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
        }

    def __str__(self) -> str:
        interval = f" ({points(self.ci95)})" if self.ci95 else ""
        asked = "" if self.cell.asked == "apart" else f", {self.cell.asked}"
        cell = f"{self.cell.task} at {self.cell.length:,}{asked}"
        return f"{cell}, {self.arm}: {100 * self.score:.1f}{interval}, n = {self.n}"


def points(interval: Interval | None) -> str:
    """An interval in points of 100."""
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def rows_of(
    cell: Cell, arms: Sequence[Arm], contexts: Sequence[Sequence[Sequence[Answer]]]
) -> list[Row]:
    """A row for each arm. contexts[context][arm]: the answers in order of the questions."""
    first = [about[0] for about in contexts]
    return [
        _row(cell, arm, [about[i] for about in contexts], first if i else None, str(arms[0]))
        for i, arm in enumerate(arms)
    ]


def _row(
    cell: Cell,
    arm: Arm,
    contexts: Sequence[Sequence[Answer]],
    first: Sequence[Sequence[Answer]] | None,
    name_of_first: str,
) -> Row:
    scores = [[answer.score for answer in about] for about in contexts]
    flat = [answer for about in contexts for answer in about]
    row = Row(
        cell,
        arm,
        mean(scores),
        score_interval(scores),
        len(flat),
        len(contexts),
        _mean([answer.covered for answer in flat]),
        _mean([answer.error for answer in flat]),
        _mean([answer.read for answer in flat]),
    )
    if first is None:
        return row
    pairs = [
        [ours.score - theirs.score for ours, theirs in zip(a, b, strict=True)]
        for a, b in zip(contexts, first, strict=True)
    ]
    return replace(
        row,
        against=name_of_first,
        difference=mean(pairs),
        difference_ci95=difference_interval(pairs),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
