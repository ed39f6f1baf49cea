"""Models and packs that are damaged or made to harm: one line for each, whatever is wrong with it.

A part of them is tried in the suite, many or all under `slow`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DRIVE = [sys.executable, "-m", "tests.commands.mutants.drive"]
SEED = 19
GROWTH = 256 << 20
"""Bytes of memory beyond a file's size, of a process that tries many, kernels included."""


def survey(kind: str, numbers: list[int], folder: Path) -> tuple[list[str], dict[str, int]]:
    """What is wrong with the answers to these mutants, and how many answers there were by code."""
    wrong: list[str] = []
    codes: dict[str, int] = {}
    left = list(numbers)
    while left:
        done = subprocess.run(
            [*DRIVE, kind, str(folder), *map(str, left)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        tried: dict[int, dict[str, Any]] = {}
        for line in done.stdout.splitlines():
            report = json.loads(line)
            tried.setdefault(report["number"], {}).update(report)
        for report in tried.values():
            wrong += _faults(report, done)
            for outcome in report.get("outcomes", ["died"]):
                code = outcome.split(":")[0].split(" ")[0]
                codes[code] = codes.get(code, 0) + 1
        assert tried, done.stderr
        left = [number for number in left if number not in tried]
    return wrong, codes


def _faults(report: dict[str, Any], done: subprocess.CompletedProcess[str]) -> list[str]:
    name = f"{report['number']} {report['name']}"
    if "outcomes" not in report:
        return [f"{name}: the process ended with {done.returncode}: {done.stderr[-2000:]}"]
    wrong = [
        f"{name}: {outcome}"
        for outcome in report["outcomes"]
        if outcome[:2] not in ("0", "1:", "2")
    ]
    if report["growth"] > GROWTH:
        wrong.append(f"{name}: {report['growth'] >> 20} MB of memory beyond its size")
    return wrong


def chosen(kind: str, n: int) -> list[int]:
    """Numbers of the mutants to try."""
    done = subprocess.run(
        [*DRIVE, "choose", kind, str(n), str(SEED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    numbers: list[int] = json.loads(done.stdout)
    return numbers


@pytest.mark.parametrize(
    ("kind", "n"),
    [
        ("gguf", 80),
        ("folders", 200),
        ("f16-packs", 20),
        pytest.param("gguf", 1000, marks=pytest.mark.slow),
        pytest.param("folders", 2100, marks=pytest.mark.slow),
        pytest.param("packs", 2100, marks=pytest.mark.slow),
    ],
)
def test_a_mutant_is_run_or_refused_in_one_line(kind: str, n: int, tmp_path: Path) -> None:
    wrong, codes = survey(kind, chosen(kind, n), tmp_path)
    print(codes)
    assert not wrong, "\n".join(wrong[:20])
    # Some changes are harmless; most must be noticed, or nothing was tested.
    assert codes["1"] > codes.get("0", 0) / 5


@pytest.mark.slow
@pytest.mark.parametrize("number", range(17))
def test_metadata_takes_no_more_memory_than_the_file_and_256_mb(
    number: int, tmp_path: Path
) -> None:
    wrong, codes = survey("large", [number], tmp_path)
    print(codes)
    assert not wrong, "\n".join(wrong)
