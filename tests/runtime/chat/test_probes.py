"""Hostile templates, each rendered and measured from outside: time, memory, and no way out."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .probes import PROBES

ROOT = Path(__file__).resolve().parents[3]
MAX_SECONDS = 10.0
MAX_BYTES = 256_000_000
# macOS holds no process to a limit of memory: it is ended when it is seen above it, and may by then
# have more. What the checks foresee, it never takes.
BOUNDED = sys.platform != "darwin"


NAMES = list(PROBES)
SAMPLE = sorted(random.Random(12).sample(NAMES, len(NAMES) // 10))
BATCH = 8


def batches(chosen: list[str]) -> list[list[str]]:
    return [chosen[i : i + BATCH] for i in range(0, len(chosen), BATCH)]


def measured(chosen: list[str]) -> list[dict[str, Any]]:
    """From a small process: what is said of the memory of those it starts counts its own, too."""
    path = os.pathsep.join(p for p in sys.path if p)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.runtime.chat.run_probes", *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=len(chosen) * 60,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def check(chosen: list[str]) -> None:
    results = measured(chosen)
    assert [result["name"] for result in results] == chosen
    for result in results:
        assert result["cpu"] <= MAX_SECONDS, result
        assert result["memory"] <= MAX_BYTES or not BOUNDED, result
        error = result["error"]
        assert error is None or error.startswith("chat template: "), result
        assert error is None or (error.isprintable() and len(error) < 400), result
        if result["name"].startswith("escape: "):
            assert result["text"] == "", result


@pytest.mark.parametrize("chosen", batches(SAMPLE))
def test_some_hostile_templates_stay_within_their_limits(chosen: list[str]) -> None:
    check(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", batches(NAMES))
def test_all_hostile_templates_stay_within_their_limits(chosen: list[str]) -> None:
    check(chosen)
