"""The study of attention layer by layer: what is kept of it, and shared."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from lab.results.layers import NEAR

from ...conftest import ROOT


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("A line of prose, and one more. The third one ends here.\n" * 900)
    return path


def study(model: Path, texts: Path, work: Path, processes: int, contexts: int) -> list[str]:
    """Lines of figures, and the same command's folder of contexts."""
    answers = work.parent / "lines.jsonl"
    words = ["--task", "needle,kv", "--length", "2500", "--contexts", str(contexts)]
    words += ["--questions", "1", "--tables", "4x20,5x10", "--processes", str(processes)]
    files = ["--model", model, "--text", texts, "--work", work, "--answers", answers]
    module = [sys.executable, "-m", "lab.results.layers"]
    subprocess.run([*module, *words, *map(str, files)], check=True, cwd=ROOT)
    return answers.read_text().splitlines()


def assert_same_reading(cells: list[dict[str, Any]]) -> None:
    """Two query heads share K and V here. MagicPIG, exact top-k and `topk` read as many of these;
    LSH without a centre nearly, as random keys have none."""
    read: dict[tuple[str, int, int], dict[str, float]] = defaultdict(dict)
    for cell in cells:
        read[cell["task"], cell["context"], cell["layer"]][cell["arm"]] = cell["read"][0]
    assert read
    for arms in read.values():
        for tables in ("4x20", "5x10"):
            m = arms[f"magicpig {tables}"]
            assert arms[f"topk + means, m of {tables}"] == pytest.approx(m, rel=NEAR)
            assert 0.97 * m < arms[f"exact top-k, m of {tables}"] < 1.001 * m
        assert arms["LSH 4x20 without a centre"] == pytest.approx(arms["magicpig 4x20"], rel=0.1)


def test_figures_are_kept_and_the_same_from_two_processes(
    tiny_path: Path, texts: Path, tmp_path: Path
) -> None:
    alone = study(tiny_path, texts, tmp_path / "alone", 1, 2)
    shared = study(tiny_path, texts, tmp_path / "shared", 2, 2)
    assert alone == shared
    cells = [json.loads(line) for line in alone]
    assert {(cell["task"], cell["context"]) for cell in cells} == {
        (task, number) for task in ("needle", "kv") for number in (0, 1)
    }
    assert {"magicpig 4x20", "exact top-k, m of 5x10", "topk 1% + means"} <= {
        cell["arm"] for cell in cells
    }
    assert_same_reading(cells)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "shared").glob("*/layers-*")}
    assert len(kept) == 4
    more = study(tiny_path, texts, tmp_path / "shared", 1, 3)
    assert [line for line in more if json.loads(line)["context"] < 2] == shared
    assert (
        kept.items()
        <= {p: p.stat().st_mtime_ns for p in (tmp_path / "shared").glob("*/layers-*")}.items()
    )
