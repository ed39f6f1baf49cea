"""A section's tables: what each arm scored, beside the first, and what it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvarn.evals.quality.intervals import Interval, difference_interval, mean, score_interval

from ..data import SPEEDS
from .verdicts import is_weak, mean_interval

if TYPE_CHECKING:
    from ..data import Measurement
    from ..plan import Section

ALL = "all tasks"


@dataclass(frozen=True)
class Line:
    """One arm at one length. scores: by task, None where nothing was measured; score, interval,
    difference, n: over the tasks that are interpreted, with equal weights; read, covered, error:
    means over the same."""

    arm: str
    length: int
    scores: Mapping[str, float | None]
    score: float | None
    interval: Interval | None
    difference: float | None
    difference_interval: Interval | None
    n: int
    contexts: int
    read: float | None
    covered: float | None
    error: float | None


def lines_of(section: Section, measured: Measurement, length: int) -> list[Line]:
    """A line for each arm of a section that was measured at a length."""
    told = [t for t in measured.tasks(length) if not is_weak(measured, t, length)]
    first = str(section.arms[0])
    lines = (_line(measured, str(arm), first, length, told) for arm in section.arms)
    return [line for line in lines if any(score is not None for score in line.scores.values())]


def _line(measured: Measurement, arm: str, first: str, length: int, told: Sequence[str]) -> Line:
    scores = {task: _score(measured, task, length, arm) for task in measured.tasks(length)}
    found = [measured.clusters(task, length, arm, "score") for task in told]
    theirs = [measured.clusters(task, length, first, "score") for task in told]
    known = [list(of_task.values()) for of_task in found if of_task]
    complete = bool(known) and len(known) == len(told)
    pairs = [
        [
            [a - b for a, b in zip(ours[context], other[context], strict=True)]
            for context in sorted(ours.keys() & other.keys())
        ]
        for ours, other in zip(found, theirs)
    ]
    compared = complete and arm != first and all(len(task) > 1 for task in pairs)
    return Line(
        arm,
        length,
        scores,
        sum(map(mean, known)) / len(known) if complete else None,
        score_interval(*known) if complete else None,
        sum(map(mean, pairs)) / len(pairs) if compared else None,
        difference_interval(*pairs) if compared else None,
        sum(len(cluster) for task in known for cluster in task),
        min((len(task) for task in known), default=0),
        *(_mean_of(measured, told, length, arm, name) for name in ("read", "covered", "error")),
    )


def _score(measured: Measurement, task: str, length: int, arm: str) -> float | None:
    found = measured.clusters(task, length, arm, "score")
    return mean(list(found.values())) if found else None


def _mean_of(
    measured: Measurement, tasks: Sequence[str], length: int, arm: str, measure: str
) -> float | None:
    """The mean over the tasks that have it, with equal weights."""
    found = [measured.clusters(task, length, arm, measure) for task in tasks]
    means = [mean(list(of_task.values())) for of_task in found if of_task]
    return sum(means) / len(means) if means else None


def render(section: Section, measured: Measurement, length: int) -> str:
    """The Markdown table of a length. Tasks that are not interpreted are in brackets."""
    lines = lines_of(section, measured, length)
    tasks = measured.tasks(length)
    weak = {task for task in tasks if is_weak(measured, task, length)}
    head = ["method", "read", *(f"({t})" if t in weak else t for t in tasks)]
    head += ["all, 95%", f"less {section.arms[0]}, 95%", "n", "covered", "error"]
    rows = [head, ["---", *("---:" for _ in head[1:])]]
    for line in lines:
        scores = [_points(line.scores[task]) for task in tasks]
        rows.append(
            [
                f"`{line.arm}`",
                _percent(line.read),
                *(f"({s})" if t in weak else s for t, s in zip(tasks, scores)),
                _with(line.score, line.interval),
                _with(line.difference, line.difference_interval, signed=True),
                f"{line.n:,} / {line.contexts}",
                _percent(line.covered),
                "" if line.error is None else f"{line.error:.3f}",
            ]
        )
    kept = [i for i in range(len(head)) if i < 2 or any(row[i] for row in rows[2:])]
    return "\n".join(f"| {' | '.join(row[i] for i in kept)} |" for row in rows)


def _points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g}%"


def _with(value: float | None, interval: Interval | None, signed: bool = False) -> str:
    """A number in points of 100 with its interval."""
    if value is None:
        return ""
    text = f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"
    if interval is None:
        return text
    return f"{text} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def layer_table(section: Section, measured: Measurement, length: int) -> str:
    """A study by layers: a row for each layer and arm, means over contexts and tasks with their
    95% intervals."""
    rows = [["layer", "method", "read", "covered %, 95%", "error, 95%", "contexts"]]
    rows.append(["---:", "---", "---:", "---:", "---:", "---:"])
    layers = sorted({cell["layer"] for cell in measured.cells})
    arms = list(dict.fromkeys(cell["arm"] for cell in measured.cells))
    for layer in layers:
        for arm in arms:
            cells = [
                cell
                for cell in measured.cells
                if (cell["layer"], cell["arm"], cell["length"]) == (layer, arm, length)
            ]
            if not cells:
                continue
            read, covered, error = (_study(cells, name) for name in ("read", "covered", "error"))
            rows.append(
                [
                    str(layer),
                    f"`{arm}`",
                    _percent(read[0]),
                    _with(*covered),
                    _error(*error),
                    str(len({(cell["task"], cell["context"]) for cell in cells})),
                ]
            )
    kept = [i for i in range(6) if any(row[i] for row in rows[2:])]
    return "\n".join(f"| {' | '.join(row[i] for i in kept)} |" for row in rows)


def speed_table(section: Section, measured: Measurement, length: int) -> str:
    """A study of speed: a row for each arm, means over contexts with their 95% intervals, and how
    many times as fast as the first arm."""
    rows = [["method", "prefill, tokens/s, 95%", "×", "decode, tokens/s, 95%", "×", "contexts"]]
    rows.append(["---", *["---:"] * 5])
    first: dict[str, float] = {}
    for arm in map(str, section.arms):
        cells = [cell for cell in measured.cells if (cell["arm"], cell["length"]) == (arm, length)]
        if not cells:
            continue
        row = [f"`{arm}`"]
        for name in SPEEDS:
            rate, interval = _study(cells, name)
            assert rate is not None
            between = f" ({interval[0]:,.0f} to {interval[1]:,.0f})" if interval else ""
            row += [f"{rate:,.0f}{between}", f"{rate / first.setdefault(name, rate):.2f}"]
        rows.append([*row, str(len({(cell["task"], cell["context"]) for cell in cells}))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _study(cells: Sequence[Mapping[str, Any]], name: str) -> tuple[float | None, Interval | None]:
    """The mean of a measure over tasks with equal weights, and its interval over contexts."""
    tasks: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        if cell[name] is not None:
            of_task = tasks.setdefault(cell["task"], {})
            of_task.setdefault(cell["context"], []).append(cell[name])
    if not tasks:
        return None, None
    strata = [list(of_task.values()) for of_task in tasks.values()]
    return sum(map(mean, strata)) / len(strata), mean_interval(strata)


def _error(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")
