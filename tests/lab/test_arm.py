"""Kernels are compiled for ARM on any machine; where there is no emulator, `test-arm` says so."""

from __future__ import annotations

import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvarn.jit.kernel_cache import elf, machine_code
from kvarn.jit.kernel_cache.relocations import AARCH64
from lab.arm import __main__ as steps
from lab.arm import machine
from lab.arm.tokens import methods


def test_a_kernel_is_compiled_for_arm(tmp_path: Path) -> None:
    """As `ask` asks for it: an object file that kvarn's loader knows, in the payload of a file."""
    _, features = machine.CPUS["cortex-a76"]
    orders = [("kvarn.ops.linear.linear", "_get_rows", (name,), "rows") for name in ("F32", "F16")]
    done = subprocess.run(
        [sys.executable, "-m", "lab.arm.compile"],
        input=b"".join(map(pickle.dumps, orders)),
        capture_output=True,
        env=os.environ
        | {"KVARN_CACHE": str(tmp_path)}
        | {"NUMBA_CPU_NAME": "cortex-a76", "NUMBA_CPU_FEATURES": features},
        check=True,
    )
    first = pickle.loads(done.stdout)
    second = pickle.loads(done.stdout[len(pickle.dumps(first)) :])
    for payload in (first, second):
        code = machine_code.from_bytes(payload)
        file = elf.Object(code.object)
        assert (file.machine, code.symbol) == (AARCH64, "rows")
        assert any(file.name(symbol) == "rows" for symbol in file.symbols)
    assert first != second


def test_rows_of_ids_have_names_of_their_own() -> None:
    names = [name for name, _ in methods()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("other", "n_faults"),
    [
        ([["full f16", [7, 8, 9], [3, 0.05, 2], [1.0, 2.0]]], 0),
        ([["full f16", [7, 1, 2], [3, 1, 2], [5.0, 5.0]]], 0),  # a tie, then another context
        ([["full f16", [7, 8, 1], [3, 0.05, 2], [1.0, 2.0]]], 1),
        ([["full f16", [7, 8, 9], [3, 0.05, 2], [1.0, 2.6]]], 1),
        ([["full q8_0", [7, 8, 9], [3, 0.05, 2], [1.0, 2.0]]], 1),
        ([], 1),
        ([["full f16", [7, 8, 9], [3, 0.05, 2], [1.0, 2.0]]] * 2, 1),
    ],
)
def test_ids_may_part_at_a_tie_alone(
    other: list[Any], n_faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {steps.HERE: [["full f16", [7, 8, 9], [3, 0.05, 2], [1.0, 2.0]]], "arm": other}
    monkeypatch.setattr(
        steps, "_output", lambda python, _: "\n".join(map(json.dumps, rows[python]))
    )
    assert len(steps.STEPS["tokens"]("arm")) == n_faults


@pytest.mark.parametrize(
    ("here", "installed", "line"),
    [
        ("aarch64", True, "it runs on Linux for x86-64, this is linux for aarch64"),
        ("x86_64", False, "install qemu-user-static, apt, dpkg (Debian, Ubuntu)"),
    ],
)
def test_without_an_emulator_it_is_skipped(
    here: str,
    installed: bool,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.arm"])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: here)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/x" if installed else None)
    assert steps.main() == 0
    assert capsys.readouterr().err == f"kvarn: test-arm: skipped: {line}\n"


def test_a_launcher_adds_to_what_its_process_imports(tmp_path: Path) -> None:
    """And names the library of Python, for processes that have no environment."""
    launcher, emulator = tmp_path / "python", tmp_path / machine.QEMU
    emulator.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"')
    emulator.chmod(0o755)
    machine.write_launcher(launcher, "neoverse-v1", {"PYTHONPATH": "$PYTHONPATH:/site"})
    told = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": "/hook"}
    command = [launcher, "-m", "kvarn"]
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
    paths, *words = done.stdout.split()
    assert paths == "/hook:/site" and words[:2] == ["-cpu", "max"]
    assert words[words.index("--argv0") + 1] == str(launcher) and words[-2:] == ["-m", "kvarn"]
    home = machine.ARM / "root/usr/bin"
    assert (tmp_path / "pyvenv.cfg").read_text() == f"home = {home}\n"


def test_unknown_steps_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.arm", "nothing"])
    with pytest.raises(SystemExit):
        steps.main()
    assert "no step is called nothing" in capsys.readouterr().err
