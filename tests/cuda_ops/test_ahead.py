"""Kernels as they are compiled for GPUs that are not there: nothing spilled, wide loads, few
instructions. In a process of its own, since the interpreter replaces what would be compiled."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

WEIGHTS = {"Q8_0": 5.0, "Q4_0": 5.0, "Q4_K": 6.0, "Q6_K": 8.0}
"""The most instructions a weight by type."""
KEYS, SCAN = "attend, lists, q8_0 4x64", "scan, 32 bits"


def _ahead(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "kvarn.cuda_ops.ahead", *arguments]
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def _rows(target: str, *only: str) -> dict[str, list[str]]:
    """Kernel → its row of the table of `python -m kvarn.cuda_ops.ahead`."""
    pattern = f"^({'|'.join(map(re.escape, only))})$" if only else ""
    table = [line.strip("| ").split(" | ") for line in _ahead(target, "--only", pattern)[2:]]
    return {row[0]: row for row in table}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """What a token's time depends on, compiled for sm_89."""
    if version("triton").split(".")[:2] == ["3", "6"]:
        pytest.skip(
            "Triton 3.6 takes 5.06 instructions a weight of Q8_0, and spills 24 bytes of Q4_K"
        )
    return _rows("89", *(f"product, {name}, 1 token" for name in WEIGHTS), KEYS, SCAN)


def _fits(row: list[str], most: float) -> None:
    _, _, _, spilled, _, threads, _, _, each, _ = row
    assert spilled == "0" and int(threads) >= 384
    assert float(each) <= most


@pytest.mark.parametrize(("name", "most"), WEIGHTS.items())
def test_products_are_bound_by_memory(rows, name, most) -> None:
    row = rows[f"product, {name}, 1 token"]
    _fits(row, most)
    # Codes and x by 16 bytes; what is left are a scale, a minimum and the magic number.
    assert int(re.match(r"(\d+)×16", row[6])[1]) >= 12


def test_rows_of_keys_and_values_take_few_instructions(rows) -> None:
    _fits(rows[KEYS], 1200.0)
    assert "×16" in rows[KEYS][6]


def test_signatures_are_read_by_16_bytes(rows) -> None:
    assert "×16" in rows[SCAN][6]


def test_signatures_take_few_instructions(rows) -> None:
    """With four query heads."""
    _fits(rows[SCAN], 60.0)


def test_every_kernel_is_in_the_language() -> None:
    """What the interpreter runs, being Python, the compiler may refuse."""
    said = _ahead("89", "--parse")
    assert len(said) == len({*said}) > 80


@pytest.mark.slow
@pytest.mark.parametrize("target", ["80", "86", "89", "90", "120", "75", "gfx1100"])
def test_every_kernel_compiles_without_spills(target) -> None:
    """The exit code says that nothing spilled; older GPUs may, but at head_dim 64."""
    rows = _rows(target)
    assert len(rows) > 80
    if target not in ("75", "gfx1100"):
        assert not {row[0] for row in rows.values() if int(row[5]) < 384}
