"""Kernels as they are compiled for GPUs that are not there: nothing spilled, wide loads, few
instructions. In a process of its own, since the interpreter replaces what would be compiled."""

import os
import re
import subprocess
import sys

import pytest


def _rows(only: str, target: str) -> dict[str, list[str]]:
    """Kernel → its row of the table of `python -m kvarn.cuda_ops.ahead`."""
    command = [sys.executable, "-m", "kvarn.cuda_ops.ahead", target, "--only", only]
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    return {row[0]: row for row in found}


@pytest.mark.parametrize(
    ("name", "most"), [("Q8_0", 5.0), ("Q4_0", 5.0), ("Q4_K", 6.0), ("Q6_K", 8.0)]
)
def test_products_are_bound_by_memory(name, most) -> None:
    (row,) = _rows(f"{name}, 1 token", "89").values()
    _, _, _, spilled, _, threads, loads, _, a_weight, _ = row
    assert spilled == "0" and int(threads) >= 384
    assert float(a_weight) <= most
    # Codes and x by 16 bytes; what is left are a scale, a minimum and the magic number.
    assert int(re.match(r"(\d+)×16", loads)[1]) >= 12
