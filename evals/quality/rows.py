"""The table of an evaluation: the score of each arm in each cell, compared with the first arm's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...system.text import one_line
from .arms import Arm
from .folder import Answer
from .intervals import Interval, difference_interval, mean, score_interval
from .plan import Cell

Contexts = Sequence[Sequence[Sequence[Answer]]]
"""[context][arm]: the answers about the contexts of a task, in order of the questions."""


ALL = "all tasks"
"""The task's name in rows over all tasks."""
_MEASURES = ("covered", "error", "read", "entropy")
"""Fields of `Answer` whose means are fields of `Row`."""
_ALWAYS = ("task", "length", "method", "budget", "score", "95%", "n")
_DEFAULTS = {"prefill": "exact"}
"""Columns that are left out where all rows say the same."""
_RIGHT = ("length", "budget", "score", "n", "difference", "covered", "error", "read", "entropy")


@dataclass(frozen=True)
class Row:
    """One arm's answers to all questions of a cell, or of all tasks at a length.

    score: mean over the questions, 0 to 1; of all tasks, the mean of theirs. ci95: see
    `score_interval`. n, contexts: numbers of questions and contexts. against: the arm whose score
    is subtracted in `difference`, "" for the first. covered, error, read, entropy: means over the
    questions, see `Answer`.
    """

    cell: Cell
    arm: Arm
    score: float
    ci95: Interval | None
    n: int
    contexts: int
    against: str = ""
    difference: float | None = None
    difference_ci95: Interval | None = None
    covered: float | None = None
    error: float | None = None
    read: float | None = None
    entropy: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "task": self.cell.task,
            "length": self.cell.length,
            "question": self.cell.asked,
            "chat": self.cell.chat,
            "method": self.arm.method,
            "budget": self.arm.budget,
            "keep": self.arm.keep,
            "keep_budget": self.arm.keep_budget,
            "prefill": self.arm.prefill,
            **{field.name: getattr(self, field.name) for field in fields(self)[2:]},
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
    scores = [[[answer.score for answer in about[number]] for about in task] for task in tasks]
    means: dict[str, Any] = {name: _mean_of(tasks, number, name) for name in _MEASURES}
    row = Row(
        cell,
        arms[number],
        _mean(map(mean, scores)),
        score_interval(*scores),
        sum(len(context) for task in scores for context in task),
        sum(map(len, tasks)),
        **means,
    )
    if number == 0:
        return row
    differences = [
        [
            [arm.score - first.score for arm, first in zip(about[number], about[0], strict=True)]
            for about in task
        ]
        for task in tasks
    ]
    return replace(
        row,
        against=str(arms[0]),
        difference=_mean(map(mean, differences)),
        difference_ci95=difference_interval(*differences),
    )


def _mean_of(tasks: Sequence[Contexts], number: int, measure: str) -> float | None:
    """The mean of a measure of an arm's answers, of equal weight in each task that has it."""
    means = []
    for task in tasks:
        values = [getattr(answer, measure) for about in task for answer in about[number]]
        if known := [value for value in values if value is not None]:
            means.append(_mean(known))
    return _mean(means) if means else None


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def render(rows: Sequence[Row], output: str = "md") -> str:
    """The rows as a markdown table, scores in points of 100, or as JSON.

    Columns that are empty in all rows are left out of the table.
    """
    if output == "json":
        return json.dumps([row.as_dict() for row in rows], indent=2)
    cells = [_cells(row) for row in rows]
    names = [
        name
        for name in _cells(rows[0])
        if name in _ALWAYS or any(c[name] not in ("", _DEFAULTS.get(name)) for c in cells)
    ]
    lines = [names, [("---:" if name in _RIGHT else "---") for name in names]]
    lines += [[row_cells[name] for name in names] for row_cells in cells]
    return "\n".join(f"| {' | '.join(map(one_line, line))} |" for line in lines)


def _cells(row: Row) -> dict[str, str]:
    keep = f"{row.arm.keep} {row.arm.keep_budget}".strip()
    return {
        "task": row.cell.task,
        "length": f"{row.cell.length:,}",
        "method": row.arm.method,
        "budget": row.arm.budget,
        "keep": "" if keep == "all" else keep,
        "prefill": row.arm.prefill,
        "score": f"{100 * row.score:.1f}",
        "95%": points(row.ci95),
        "n": str(row.n),
        "difference": "" if row.difference is None else f"{100 * row.difference:+.1f}",
        "difference, 95%": points(row.difference_ci95),
        "covered": "" if row.covered is None else f"{row.covered:.1%}",
        "error": "" if row.error is None else f"{row.error:.3f}",
        "read": "" if row.read is None else f"{row.read:.1%}",
        "entropy": "" if row.entropy is None else f"{row.entropy:.2f}",
    }
