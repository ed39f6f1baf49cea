"""What a GPU shows of kvarn, in one file: `python -m lab.gpu.report`.

It runs all steps, and goes on after one that fails:

    doctor      the GPU, its driver, and all kernels compiled
    tests       tests/cuda_ops on the GPU
    sanitizer   some of them under compute-sanitizer, where it is installed
    bench       the CPU beside the GPU, by method
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvarn.system.terminal import say

MODEL = Path("runtime/loading/kvarn-mini.gguf")
REPORT = Path("build/gpu-report.md")
_KVARN = (sys.executable, "-m", "kvarn")
_TESTS = (sys.executable, "-m", "pytest", "-q", "--durations=10")
_SANITIZER = "compute-sanitizer"
_MOST_LINES = 200
"""Of a step's output, its last lines."""


@dataclass(frozen=True)
class Step:
    """A command, and the minutes after which it is stopped."""

    name: str
    command: tuple[str, ...]
    minutes: float = 30.0


def steps(model: Path) -> list[Step]:
    """All steps, in their order."""
    few = ("tests/cuda_ops/test_pointwise.py", "tests/cuda_ops/test_device.py")
    sanitizer = (_SANITIZER, "--error-exitcode", "1", "--tool")
    sizes = ("-p", "512", "-n", "64", "-d", "0,8192", "-r", "3")
    return [
        Step("doctor", (*_KVARN, "doctor", "--compile")),
        Step("tests", (*_TESTS, "tests/cuda_ops")),
        Step("sanitizer memcheck", (*sanitizer, "memcheck", *_TESTS, *few)),
        Step("sanitizer racecheck", (*sanitizer, "racecheck", *_TESTS, few[0])),
        *(
            Step(
                f"bench {device} {method}",
                (*_KVARN, "bench", str(model), "--device", device, "--method", method, *sizes),
            )
            for device in ("cpu", "cuda")
            for method in ("full", "topk", "hash")
        ),
    ]


def run(chosen: Sequence[Step], report: Path) -> bool:
    """Run the steps, each into the report when it ends; whether all that could be run succeeded."""
    report.parent.mkdir(parents=True, exist_ok=True)
    good = True
    with report.open("w", encoding="utf-8") as file:
        file.write(f"# kvarn on a GPU\n\n{_machine()}\n")
        for step in chosen:
            say(f"{step.name}: {' '.join(step.command)}")
            began = time.perf_counter()
            result, output = _outcome(step)
            seconds = time.perf_counter() - began
            say(f"{step.name}: {result}, {seconds:.0f} s")
            good = good and result in ("passed", _missing(step))
            file.write(f"\n## {step.name}: {result}, {seconds:.0f} s\n\n{output}")
            file.flush()
    say(f"written to {report}")
    return good


def _missing(step: Step) -> str:
    return f"not run: {step.command[0]} is not installed"


def _outcome(step: Step) -> tuple[str, str]:
    """How a step ended, and its output as a block of Markdown."""
    if shutil.which(step.command[0]) is None:
        return _missing(step), ""
    try:
        done = subprocess.run(
            step.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60 * step.minutes,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        result, output = f"stopped after {step.minutes:g} minutes", error.stdout or b""
    else:
        result = "passed" if done.returncode == 0 else f"failed with exit code {done.returncode}"
        output = done.stdout
    lines = output.decode("utf-8", "replace").splitlines()[-_MOST_LINES:]
    return result, "".join(f"    {line}\n" for line in lines)


def _machine() -> str:
    """The packages that count, and what the driver says of the GPUs."""
    rows = [f"- Python {sys.version.split()[0]}"]
    for name in ("torch", "triton", "numba", "numpy"):
        try:
            rows.append(f"- {name} {version(name)}")
        except PackageNotFoundError:
            rows.append(f"- no {name}")
    _, told = _outcome(Step("driver", ("nvidia-smi", "-L"), 1))
    return "\n".join(rows) + "\n\n" + (told or "    no nvidia-smi\n")


def main() -> int:
    """Run all steps, or those whose names begin with a word that is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("only", nargs="*", help="steps to run: doctor, tests, sanitizer, bench")
    parser.add_argument("--model", type=Path, default=MODEL, help="of the bench")
    parser.add_argument("-o", "--output", type=Path, default=REPORT)
    options = parser.parse_args()
    only = tuple(options.only)
    chosen = [step for step in steps(options.model) if not only or step.name.startswith(only)]
    if not chosen:
        parser.error(f"no step is called {' or '.join(only)}")
    return 0 if run(chosen, options.output) else 1


if __name__ == "__main__":
    sys.exit(main())
