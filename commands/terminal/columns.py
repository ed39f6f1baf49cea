"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from ...system.text import one_line

CELL_WIDTH = 1000
"""Characters of a cell that are shown: a file may hold longer names."""


def columns(rows: Sequence[Sequence[str]], aligned: str) -> str:
    """Rows of text in columns, each aligned `<` or `>`; unprintable characters are escaped."""
    shown = [[one_line(cell, CELL_WIDTH) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown)]
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths))
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)
