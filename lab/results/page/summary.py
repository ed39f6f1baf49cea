"""Which method at which budget: the least that answers as full attention does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..plan import ANSWERS
from .tables import Line, lines_of

if TYPE_CHECKING:
    from ..data import Measurement
    from ..plan import Arm, Results, Section

SLACK = -0.01
"""A difference whose whole interval is above this is none that a reader of answers would see."""
SECTIONS = {
    "beside-full": "reads few tokens",
    "beside-full-gqa": "reads few tokens, two query heads a KV head",
    "hash-64k": "reads few tokens, far beyond the training of its encoders",
    "nacl-inside": "keeps few tokens, the question at the end of the prompt",
    "hashevict-budgets": "keeps few tokens, the question at the end of the prompt",
    "nacl-apart": "keeps few tokens before it knows the question",
}
"""Sections that say what to use, and for what."""


def summary(results: Results, measured: Mapping[str, Measurement]) -> str:
    """A row for each method of each of SECTIONS, by how much of the tokens it needs."""
    rows = [
        row
        for section in results.sections
        if section.name in SECTIONS and section.kind == ANSWERS
        for row in _rows(section, measured[section.name])
    ]
    head = "| a method that | model, tokens | method | least budget within a point of `full` | "
    head += "tokens read or kept | less `full`, 95% |\n|---|---|---|---|---:|---:|"
    return "\n".join([head, *rows])


def _rows(section: Section, measured: Measurement) -> Iterator[str]:
    if measured.contexts < section.contexts:
        return
    length = section.lengths[-1]
    lines = {line.arm: line for line in lines_of(section, measured, length)}
    families: dict[str, list[tuple[Arm, Line]]] = {}
    for arm in section.arms[1:]:
        if str(arm) in lines:
            families.setdefault(family(arm), []).append((arm, lines[str(arm)]))
    for name, pairs in families.items():
        by_cost = sorted(pairs, key=lambda pair: cost(*pair))
        good = [pair for pair in by_cost if is_as_full(pair[1])]
        arm, line = good[0] if good else by_cost[-1]
        budget = budget_of(arm) if good else f"none up to {budget_of(arm)}"
        assert line.difference is not None and line.difference_interval is not None
        low, high = line.difference_interval
        yield (
            f"| {SECTIONS[section.name]} | {section.model}, {length:,} | `{name}` | {budget} | "
            f"{100 * cost(arm, line):.3g}% | "
            f"{100 * line.difference:+.1f} ({100 * low:.1f} to {100 * high:.1f}) |"
        )


def is_as_full(line: Line) -> bool:
    """Whether the whole interval of the difference is within a point."""
    return line.difference_interval is not None and line.difference_interval[0] >= SLACK


def budget_of(arm: Arm) -> str:
    """The budget of an arm's method, wherever it is named."""
    name, given = (arm.keep, arm.keep_budget) if arm.keep else (arm.method, arm.budget)
    return given or name.partition(":budget=")[2]


def cost(arm: Arm, line: Line) -> float:
    """The share of the tokens that is read, or kept."""
    if line.read is not None:
        return line.read
    return float(budget_of(arm).rstrip("%")) / 100


def family(arm: Arm) -> str:
    """The method that an arm chooses or keeps with, without its budget."""
    name = arm.keep or arm.method
    return name.partition(":budget=")[0]
