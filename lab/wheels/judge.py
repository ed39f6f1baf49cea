"""What a wheel leaves to compile: `python -m lab.wheels.judge WHEEL MODEL…`.

    cpu     model                   compiled  imported   command
    avx512  gemma-3-270m-q4_k_m            0  -          run -f text.txt -n 2 --method topk

Installs the wheel into an environment of its own, then types each command with an empty home
folder, for each variant of kernels that the wheel has and this machine can run. `compiled` counts
the functions that all processes of the command compiled and kept, `imported` tells whether one of
them loaded Numba or LLVM. The goal is 0 and neither; the exit code is 1 where that is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kvarn.jit.bundled import Target
from kvarn.jit.kernel_cache.folders import KERNELS
from kvarn.jit.variant import NEEDS, host_features
from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say, show

COMMANDS = [
    "run -p hi -n 1",
    *(f"run -f text.txt -n 2 --method {name}" for name in ("full", "topk", "hash")),
    "run -f text.txt -n 2 --prefill sparse",
    *(f"run -f text.txt -n 2 --kv-type q8_0 --method {name}" for name in ("full", "topk")),
    "chat -n 2",
    "pack build -f text.txt -o judged",
    "bench -p 40 -n 2 -r 1",
    "embed --pooling mean hi",
    "serve --port 0",
]
"""A model is added to each."""
TEXT = "".join(f"On day {i}, the miller ground {i * 7 % 90} sacks. " for i in range(120))
"""Some 1,500 tokens: enough for methods that read a part of them to choose."""
_MINUTES = 20

# `find_spec("numba")` alone imports nothing: only names inside of a package tell that it is loaded.
_HOOK = """
import os, sys
class Listener:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("numba.", "llvmlite.")):
            with open(os.environ["KVARN_JUDGE"], "a") as file:
                file.write(name.partition(".")[0] + "\\n")
sys.meta_path.insert(0, Listener())
"""


class Verdict(NamedTuple):
    """What one command did.

    compiled  functions that it compiled and kept
    imported  "numba", "llvmlite", or both, if one of its processes loaded them
    """

    compiled: int
    imported: frozenset[str]

    @property
    def is_right(self) -> bool:
        return not self.compiled and not self.imported


def main(arguments: list[str] | None = None) -> int:
    """Judge, print the table; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.wheels.judge", description=__doc__)
    parser.add_argument("wheel", metavar="WHEEL", type=Path)
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+")
    parser.add_argument("--command", metavar="WORDS", action="append", help="instead of all")
    parser.add_argument("--python", default=sys.executable, help="which installs it (this one)")
    options = parser.parse_args(arguments)
    n_wrong = 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            bin_folder = install(options.wheel, Path(folder, "venv"), options.python)
            show(f"{'cpu':7} {'model':30} {'compiled':>8}  {'imported':14}  command")
            for name in variants(bin_folder):
                for model in options.models:
                    for command in options.command or COMMANDS:
                        words = [*command.split(), "--model", str(model.absolute())]
                        verdict = judge([str(bin_folder / "kvarn"), *words], {"KVARN_SIMD": name})
                        imported = ", ".join(sorted(verdict.imported)) or "-"
                        row = f"{name:7} {model.stem[:30]:30} {verdict.compiled:8}"
                        show(f"{row}  {imported:14}  {command}")
                        n_wrong += not verdict.is_right
    except (KvarnError, OSError) as error:
        say(str(error))
        return 1
    return 1 if n_wrong else 0


def install(wheel: Path, to: Path, python: str = sys.executable) -> Path:
    """Make an environment with the wheel and what `serve` needs; the folder of its programs."""
    for words in (
        [python, "-m", "venv", str(to)],
        [
            str(to / "bin/pip"),
            "install",
            "--quiet",
            "--disable-pip-version-check",
            f"{wheel.absolute()}[serve]",
        ],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=_plain())
        if done.returncode:
            raise KvarnError(f"installing {wheel}: {done.stderr[-500:]}")
    return to / "bin"


def variants(bin_folder: Path) -> Iterator[str]:
    """The variants of the installed kernels that this machine can run, best first."""
    (listed,) = bin_folder.parent.glob("lib/python*/site-packages/kvarn/bundled/targets.json")
    for target in (Target(*pair) for pair in json.loads(listed.read_text("utf-8"))):
        if target.runs_on(host_features()):
            yield next(name for name, needs in NEEDS.items() if needs <= target.needs)


def judge(command: list[str], environment: Mapping[str, str]) -> Verdict:
    """Run a command with an empty home folder, and count. Raises `KvarnError` where it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        home, hook = Path(temporary, "home"), Path(temporary, "hook")
        home.mkdir(mode=0o700)
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(_HOOK)
        (home / "text.txt").write_text(TEXT)
        imported = hook / "imported"
        imported.touch()
        told = {"HOME": str(home), "PYTHONPATH": str(hook), "KVARN_JUDGE": str(imported)}
        with subprocess.Popen(
            command,
            cwd=home,
            env={**_plain(), **told, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                output = _serve(process) if "serve" in command[1:2] else ""
                output += process.communicate("hi\n", timeout=60 * _MINUTES)[0]
            finally:
                process.kill()
        if process.returncode:
            raise KvarnError(f"{' '.join(command)}: ended with {process.returncode}: {output}")
        files = (home / ".cache/kvarn/kernels").rglob("*")
        compiled = sum(file.suffix in KERNELS for file in files)
        return Verdict(compiled, frozenset(imported.read_text().split()))


def _plain() -> dict[str, str]:
    """The environment without choices of this process, such as where it finds kvarn."""
    hidden = ("KVARN_", "NUMBA_", "XDG_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def _serve(process: subprocess.Popen[str]) -> str:
    """Ask a server that has been started, and end it; what it has said."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if address := re.search(r"listening on (http://\S+);", line):
            _ask(address[1])
            process.send_signal(signal.SIGINT)
            break
    return output


def _ask(address: str) -> None:
    """Wait for an answer; a server refuses while it loads its model."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
    request = Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
    for _ in range(60 * _MINUTES):
        try:
            with urlopen(request, timeout=60 * _MINUTES) as answer:
                answer.read()
                return
        except HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(1)
    raise KvarnError(f"{address}: its model has not loaded in {_MINUTES} minutes")


if __name__ == "__main__":
    sys.exit(main())
