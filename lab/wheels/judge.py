"""What a wheel leaves to compile: `python -m lab.wheels.judge WHEEL MODEL…`.

    cpu     model                   compiled  imported  text  command
    avx512  gemma-3-270m-q4_k_m            0  -         same  run -f text.txt -n 2 --method topk

Installs the wheel into an environment of its own, then types each command with an empty home
folder, for each variant of kernels that the wheel has and this machine can run. `compiled` counts
the functions that all processes of the command compiled and kept, `imported` tells whether one of
them loaded Numba or LLVM, `text` whether it is that of this checkout. The goal is 0, neither and
the same; the exit code is 1 where that is missed. A wheel for ARM is judged in emulation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kvarn.jit import kernel_cache
from kvarn.jit.bundled import Target
from kvarn.jit.kernel_cache.folders import KERNELS
from kvarn.jit.variant import NEEDS, host_features
from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say, show
from lab.arm import machine

COMMANDS = [
    "run -p hi -n 1 --temp 0",
    *(f"run -f text.txt -n 2 --temp 0 --method {name}" for name in ("full", "topk", "hash")),
    "run -f text.txt -n 2 --temp 0 --prefill sparse",
    *(f"run -f text.txt -n 2 --temp 0 --kv-type q8_0 --method {name}" for name in ("full", "topk")),
    "chat -n 2 --temp 0",
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
if features := os.environ.get("KVARN_JUDGE_FEATURES"):  # qemu shows those of the CPU outside
    from kvarn.jit import machine
    machine.features = lambda: frozenset(features.split())
"""


class Verdict(NamedTuple):
    """What one command did.

    compiled  functions that it compiled and kept
    imported  "numba", "llvmlite", or both, if one of its processes loaded them
    text      what it generated: "" of other commands
    """

    compiled: int
    imported: frozenset[str]
    text: str = ""

    def is_right(self, text: str) -> bool:
        """Whether it is what a wheel is for. text: what it should have generated."""
        return not self.compiled and not self.imported and self.text == text


class Installed(NamedTuple):
    """A wheel in an environment of its own.

    packages     the folder of its packages
    kvarn        what starts it
    features     those of the CPU
    environment  variables of its processes
    """

    packages: Path
    kvarn: list[str]
    features: frozenset[str]
    environment: dict[str, str]


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
            if options.wheel.stem.endswith("_aarch64") and platform.machine() == "x86_64":
                installed = install_in_emulator(options.wheel, Path(folder))
            else:
                installed = install(options.wheel, Path(folder), options.python)
            show(f"{'cpu':7} {'model':30} {'compiled':>8}  {'imported':14}  {'text':5}  command")
            for name in variants(installed):
                for model in options.models:
                    for command in options.command or COMMANDS:
                        words = [*command.split(), "--model", str(model.absolute())]
                        told = {**installed.environment, "KVARN_SIMD": name}
                        verdict = judge([*installed.kvarn, *words], told)
                        text = _text_here(*words)
                        imported = ", ".join(sorted(verdict.imported)) or "-"
                        same = "other" if verdict.text != text else "same" if text else "-"
                        row = f"{name:7} {model.stem[:30]:30} {verdict.compiled:8}"
                        show(f"{row}  {imported:14}  {same:5}  {command}")
                        n_wrong += not verdict.is_right(text)
    except (KvarnError, OSError) as error:
        say(str(error))
        return 1
    return 1 if n_wrong else 0


@cache
def _text_here(*words: str) -> str:
    """What the kvarn of this Python generates."""
    kept = kernel_cache.place()
    told = {"KVARN_CACHE": str(kept.parents[1])} if kept else {}
    return judge([sys.executable, "-m", "kvarn", *words], told).text


def install(wheel: Path, to: Path, python: str = sys.executable) -> Installed:
    """Make an environment with the wheel and what `serve` needs."""
    pip = str(to / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"
    for words in ([python, "-m", "venv", str(to)], [*pip, f"{wheel.absolute()}[serve]"]):
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=_plain())
        if done.returncode:
            raise KvarnError(f"installing {wheel}: {done.stderr[-500:]}")
    (packages,) = to.glob("lib/python*/site-packages")
    return Installed(packages, [str(to / "bin/kvarn")], host_features(), {})


def install_in_emulator(wheel: Path, to: Path) -> Installed:
    """The same for an ARM Python, on the CPU of the wheel's kernels. Raises `KvarnError`."""
    if reason := machine.why_not():
        raise KvarnError(f"judging a wheel for ARM: {reason}")
    cpu, packages, python = "cortex-a76", to / "site", to / "python"
    machine.unpack_python()
    machine.install([f"{wheel.absolute()}[serve]"], packages)
    machine.write_launcher(python, cpu, {"PYTHONPATH": f"$PYTHONPATH:{packages}"})
    features = Target(cpu, machine.CPUS[cpu][1]).needs
    told = {"KVARN_JUDGE_FEATURES": " ".join(features)}
    return Installed(packages, [str(python), "-m", "kvarn"], features, told)


def variants(installed: Installed) -> Iterator[str]:
    """The variants of the installed kernels that the CPU can run, best first."""
    listed = (installed.packages / "kvarn/bundled/targets.json").read_text("utf-8")
    for target in (Target(*pair) for pair in json.loads(listed)):
        if target.runs_on(installed.features):
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
        with (
            (hook / "text").open("w+") as text,
            subprocess.Popen(
                command,
                cwd=home,
                env={**_plain(), **told, **environment},
                stdin=subprocess.PIPE,
                stdout=text,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            try:
                said, answer = _serve(process) if "serve" in command else ("", "")
                said += process.communicate("hi\n", timeout=60 * _MINUTES)[1]
            finally:
                process.kill()
            text.seek(0)
            shown = text.read()
        if process.returncode:
            done = f"{' '.join(command)}: ended with {process.returncode}"
            raise KvarnError(f"{done}: {shown}{said}")
        files = (home / ".cache/kvarn/kernels").rglob("*")
        compiled = sum(file.suffix in KERNELS for file in files)
        generated = shown if {"run", "chat"} & set(command) else answer
        return Verdict(compiled, frozenset(imported.read_text().split()), generated)


def _plain() -> dict[str, str]:
    """The environment without choices of this process, such as where it finds kvarn."""
    hidden = ("KVARN_", "NUMBA_", "XDG_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def _serve(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ask a server that has been started, and end it; what it has said, and its answer."""
    assert process.stderr is not None
    said = answer = ""
    for line in process.stderr:
        said += line
        if address := re.search(r"listening on (http://\S+);", line):
            answer = _ask(address[1])
            process.send_signal(signal.SIGINT)
            break
    return said, answer


def _ask(address: str) -> str:
    """Wait for an answer; a server refuses while it loads its model."""
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
    body, head = json.dumps(asked).encode(), {"Content-Type": "application/json"}
    request = Request(f"{address}/v1/chat/completions", body, head)
    for _ in range(60 * _MINUTES):
        try:
            with urlopen(request, timeout=60 * _MINUTES) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])
        except HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(1)
    raise KvarnError(f"{address}: its model has not loaded in {_MINUTES} minutes")


if __name__ == "__main__":
    sys.exit(main())
