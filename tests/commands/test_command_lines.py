"""Whatever is typed: exit code 0, 1, 2 or 130, in words; no traceback, no signal, no hang."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import command_lines

from kvarn.runtime.loading.default_model import default_model_path
from kvarn.system.text import lines

PATIENCE = 200.0
"""Seconds for one command line, kernels compiled included."""
ALL, SOME = 2500, 250


class Runner:
    """A process that runs command lines in a folder of its own; another one where it ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "deep" / "work"
        self._folder.mkdir(parents=True)
        self._fill()
        self._complaints = (folder / "stderr").open("w+b")
        caches = {} if "XDG_CACHE_HOME" in os.environ else {"KVARN_CACHE": str(_cache())}
        self._env = {
            **caches,
            **os.environ,
            "HOME": str(folder),
            "KVARN_HOME": str(folder / "home"),
            "HF_HOME": str(folder / "hub"),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _fill(self) -> None:
        at = self._folder
        (at / "text.txt").write_text("the mill by the river " * 40)
        (at / "empty.txt").touch()
        (at / "latin.txt").write_bytes(b"caf\xe9")
        (at / "folder").mkdir()
        (at / "loop").symlink_to("loop")
        shutil.copy(default_model_path(), at / "model.gguf")
        (at / "broken.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 40)

    def run(self, arguments: list[str]) -> dict[str, Any]:
        """What `line_runner` tells; "died" where it did not."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("line_runner.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                cwd=self._folder,
                env=self._env,
                bufsize=0,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], PATIENCE)[0]:
                process.send_signal(signal.SIGABRT)
                process.wait()
                return {"died": f"nothing for {PATIENCE} s:\n{self.complaints()[-3000:]}"}
            more = process.stdout.read(1 << 20)
            if not more:
                return {"died": f"exit code {process.wait()}"}
            answer += more
        told: dict[str, Any] = json.loads(answer)
        return told

    def complaints(self) -> str:
        """What went to the process's own stderr, past every door."""
        self._complaints.seek(0)
        return self._complaints.read().decode("utf-8", "replace")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _cache() -> Path:
    """Where kernels are kept, compiled ones too: this home is not the one of the lines."""
    return Path.home() / ".cache" / "kvarn"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    one = Runner(tmp_path)
    yield one
    one.close()


def wrong(told: dict[str, Any]) -> str:
    """What must not be said of a command line; "" where all is well."""
    if "died" in told:
        return str(told["died"])
    code, err = told["code"], told["err"]
    if code not in (0, 1, 2, 130):
        return f"exit code {code!r}"
    if "Traceback" in err or "a fault of kvarn" in err:
        return f"unforeseen: {err[-500:]}"
    if lines(err) != err:
        return "control characters"
    if code in (1, 2) and not err.strip() and not told["out"].strip():
        return "no word about the failure"
    return ""


def check(runner: Runner, seed: int, n: int) -> None:
    faults, codes = [], {}
    for arguments in command_lines(seed, n):
        told = runner.run(arguments)
        codes[told.get("code")] = codes.get(told.get("code"), 0) + 1
        if fault := wrong(told):
            faults.append(f"{[word[:100] for word in arguments]}: {fault}")
    assert not faults, f"{len(faults)} of {n}:\n" + "\n".join(faults)
    assert not runner.complaints()
    assert codes[0] > n // 20, "too few of them do something"
    assert codes[1] > n // 10
    assert codes[2] > n // 10


def test_a_tenth_of_the_command_lines(runner: Runner) -> None:
    check(runner, 0, SOME)


@pytest.mark.slow
def test_all_command_lines(runner: Runner) -> None:
    check(runner, 1, ALL)
