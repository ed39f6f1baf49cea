"""Results as llama-bench writes them: markdown, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from typing import Any

from ...system.text import one_line
from .cases import Result

Row = dict[str, Any]


def _in(unit: float, name: str) -> Callable[[Row], str]:
    """A cell of a figure in this unit, empty where there is none."""
    return lambda row: "" if row[name] is None else f"{row[name] / unit:.2f}"


# Title, alignment, what stands in the cell; a column that would be empty is left out.
_COLUMNS: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
    ("model", "---", lambda row: str(row["model_type"])),
    ("size", "---:", lambda row: f"{row['model_size'] / 2**20:.1f} MiB"),
    ("params", "---:", lambda row: f"{row['model_n_params'] / 1e6:.2f} M"),
    ("threads", "---:", lambda row: str(row["n_threads"])),
    ("KV", "---", lambda row: f"{row['type_k']}/{row['type_v']} {row['kv']}"),
    ("method", "---", lambda row: "" if row["method"] == "full" else str(row["method"])),
    ("prefill", "---", lambda row: "" if row["prefill"] == "exact" else str(row["prefill"])),
    ("test", "---", lambda row: str(row["test"])),
    ("t/s", "---:", lambda row: f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"),
    (
        "first token s",  # of a prompt that was read after other tokens
        "---:",
        lambda row: f"{row['avg_ns'] / 1e9:.2f}" if row["n_prompt"] and row["n_depth"] else "",
    ),
    ("choosing ms/t", "---:", _in(1e6, "index_ns")),
    ("attending ms/t", "---:", _in(1e6, "attention_ns")),
    ("from disk MB/t", "---:", _in(1e6, "disk_bytes")),
)


def render(results: list[Result], output: str) -> str:
    """The results as a markdown table ("md"), a JSON list of objects ("json") or CSV ("csv")."""
    rows = [result.as_dict() for result in results]
    if output == "json":
        return json.dumps(rows, indent=2)
    if output == "csv":
        text = io.StringIO()
        plain = [
            {
                k: one_line(v) if isinstance(v, str) else v
                for k, v in row.items()
                if not isinstance(v, list)
            }
            for row in rows
        ]
        writer = csv.DictWriter(text, plain[0] if plain else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        return text.getvalue().rstrip("\n")
    columns = [column for column in _COLUMNS if any(column[2](row) for row in rows)]
    lines = [_line(title for title, *_ in columns)]
    lines.append("|" + "|".join(alignment for _, alignment, _ in columns) + "|")
    lines += [_line(cell(row) for *_, cell in columns) for row in rows]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(one_line, cells))} |"
