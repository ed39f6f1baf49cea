"""What was measured, as it stands in the repository: one file for each section.

{"command": the arguments, "contexts": how many of each cell, "seconds": wall time of all runs,
 "cells": [{"task", "length", "context", "arm", "scores": one for each question, "covered", "error",
            "read", "entropy": means over the questions, or null}]}

A study has "layer" in each cell and no scores; one of speed also "prefill" and "decode", in tokens
per second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kvarn.system.files import write_file
from kvarn.system.reading import MOST_TEXT, read_file

MEASURES = ("covered", "error", "read", "entropy")
SPEEDS = ("prefill", "decode")
"""Tokens per second."""
DIGITS = 4


@dataclass(frozen=True)
class Measurement:
    """One section's figures. cells: see the module."""

    command: Sequence[str] = ()
    contexts: int = 0
    seconds: float = 0.0
    cells: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def tasks(self, length: int) -> list[str]:
        """The tasks measured at a length, in their order."""
        return list(dict.fromkeys(c["task"] for c in self.cells if c["length"] == length))

    def lengths(self) -> list[int]:
        """The lengths measured."""
        return sorted({cell["length"] for cell in self.cells})

    def clusters(self, task: str, length: int, arm: str, measure: str) -> dict[int, list[float]]:
        """Context → the values of its questions; of what was measured over all, a single one."""
        found: dict[int, list[float]] = {}
        for cell in self._cells_of.get((task, length, arm), ()):
            if measure == "score":
                if cell["scores"]:
                    found[cell["context"]] = list(cell["scores"])
            elif cell[measure] is not None:
                found.setdefault(cell["context"], []).append(cell[measure])
        return found

    @cached_property
    def _cells_of(self) -> dict[tuple[str, int, str], list[Mapping[str, Any]]]:
        """The cells of each task, length and arm."""
        found: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
        for cell in self.cells:
            found.setdefault((cell["task"], cell["length"], cell["arm"]), []).append(cell)
        return found


def read_measurement(path: Path) -> Measurement:
    """What a file holds; nothing where there is none yet."""
    if not path.exists():
        return Measurement()
    return Measurement(**json.loads(read_file(path, MOST_TEXT)))


def write_measurement(path: Path, measured: Measurement) -> None:
    """Write a section's file, one cell a line; its folder is made where it is missing."""
    head = {
        "command": list(measured.command),
        "contexts": measured.contexts,
        "seconds": round(measured.seconds),
    }
    lines = [json.dumps(head)[:-1] + ', "cells": [']
    lines += [",\n".join(json.dumps(dict(cell)) for cell in measured.cells), "]}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, ("\n".join(lines) + "\n").encode())


def cells_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What `kvarn eval --answers` wrote, with means in place of the questions' own figures."""
    found = []
    for line in lines:
        cell = json.loads(line)
        for name in [*MEASURES, *(name for name in SPEEDS if name in cell)]:
            known = [value for value in cell[name] if value is not None]
            cell[name] = round(sum(known) / len(known), DIGITS) if known else None
        cell["scores"] = [round(score, DIGITS) for score in cell["scores"]]
        found.append(cell)
    return found
