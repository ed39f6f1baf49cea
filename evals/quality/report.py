"""The table of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...system.text import one_line
from .rows import Row, points

ALWAYS = ("task", "length", "method", "budget", "score", "95%", "n")
UNSAID = {"prefill": "exact"}
"""Columns that are left out where all rows say the same."""
RIGHT = ("length", "budget", "score", "n", "difference", "covered", "error", "read", "entropy")


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
        if name in ALWAYS or any(c[name] not in ("", UNSAID.get(name)) for c in cells)
    ]
    lines = [names, [("---:" if name in RIGHT else "---") for name in names]]
    lines += [[each[name] for name in names] for each in cells]
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
