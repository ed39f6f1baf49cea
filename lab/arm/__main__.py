"""What emulation tells of kvarn on ARM: `python -m lab.arm [STEP …]`, which `make test-arm` calls.

Steps, on each CPU of `machine.CPUS`:

    compile  two kernels, by Numba in the emulator and by `compile`: the same instructions
    packs    a pack made on either side, continued on both
    tokens   greedy ids by type of weights, method and KV type, beside those of x86-64
    tests    the oracles of `ops`, and of `jit` those that run instructions of the CPU
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvarn.convert.quantize.files import quantise_file
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say, show
from lab.peers.model import Shape, write_model

from .ask import ARM, ROOT
from .machine import CPUS, environment, prepare, why_not
from .tokens import OTHERS, TEXT

MODELS = ARM / "home" / "models"
TYPES = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 iq4_nl".split()
"""To which the default model is quantised, beside its own."""
RANDOM = Shape(n_layers=2, n_embd=256, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=512, n_vocab=512)
TESTS = (
    *("tests/ops", "tests/jit/simd/test_dot.py", "tests/jit/simd/test_memory.py"),
    *("tests/jit/test_elf.py", "--ignore-glob=*/test_lower.py"),
    "--ignore-glob=*/test_other_cpus.py",
)
"""Without those that look at the assembly for other CPUs. `jit` has more tests whose kernels are
their own: Numba compiles them in the emulator, which takes half a minute each."""
TIE, TIE_Q4_0 = 0.1, 0.4
"""Ids may part where the best logit of x86-64 is no further from the next one (K and V in q4_0:
the second number): lanes are added in another order, which now and then rounds an 8-bit activation
or a 4-bit key to its neighbour."""
APART = 0.5
"""The most that logits of equal ids may differ: 0.21 was seen, with K and V in q4_0."""
HERE = sys.executable


def main() -> int:
    """Run all steps, or those that are named; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.arm", description="kvarn on ARM")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--cpu", choices=CPUS, action="append", help="instead of all")
    options = parser.parse_args()
    if unknown := [step for step in options.steps if step not in STEPS]:
        parser.error(f"no step is called {unknown[0]}: expected some of {', '.join(STEPS)}")
    if reason := why_not():
        say(f"test-arm: skipped: {reason}")
        return 0
    faults = list[str]()
    try:
        prepare()
        _write_models()
        for cpu in options.cpu or CPUS:
            for step in options.steps or STEPS:
                found = STEPS[step](str(ARM / cpu))
                faults += [f"{cpu} {step}: {fault}" for fault in found]
                say(f"test-arm: {cpu} {step}: {len(found)} faults")
    except (KvarnError, OSError) as error:
        faults.append(str(error))
    for fault in faults:
        say(fault)
    return 1 if faults else 0


def _tests(arm: str) -> list[str]:
    words = ["-m", "pytest", "-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider"]
    done = subprocess.run([arm, *words, *TESTS], cwd=ROOT, env=environment(arm), check=False)
    return [f"pytest ended with {done.returncode}"] if done.returncode else []


def _tokens(arm: str) -> list[str]:
    """Rows that differ from those of x86-64 by more than rounding."""
    words = ["-m", "lab.arm.tokens", str(MODELS)]
    here, there = (
        [json.loads(line) for line in _output(python, words).splitlines()] for python in (HERE, arm)
    )
    faults, ties, most = list[str](), list[str](), 0.0
    missing: list[Any] = ["", [], [], []]
    for one, other in zip_longest(here, there, fillvalue=missing):
        name, ids, margins, logits = one
        parted = [i for i, pair in enumerate(zip(ids, other[1])) if pair[0] != pair[1]]
        apart = max((abs(x - y) for x, y in zip(logits, other[3])), default=math.inf)
        tie = TIE_Q4_0 if name.endswith(" q4_0") else TIE
        if name != other[0] or (margins[parted[0]] > tie if parted else apart > APART):
            faults.append(f"{other} on x86-64 {one}")
        elif parted:
            ties.append(f"{name} at {parted[0]}")
        else:
            most = max(most, apart)
    show(
        f"{Path(arm).name}: {len(here)} rows; {len(faults)} differ, {len(ties)} part at a tie "
        f"({', '.join(ties)}); in others, logits differ by up to {most:.3f}"
    )
    return faults


def _packs(arm: str) -> list[str]:
    """Sides whose pack the other one does not continue as its own."""
    shutil.rmtree(ARM / "home" / "packs", ignore_errors=True)
    (text := ARM / "home" / "text.txt").write_text(TEXT)
    run = "-m kvarn run -p Then --temp 0 -n 12 --method full --pack".split()
    faults, sides = [], {"x86": HERE, Path(arm).name: arm}
    for name, python in sides.items():
        _output(python, ["-m", "kvarn", "pack", "build", "-f", str(text), "-o", name])
        answers = [_output(other, [*run, name]) for other in sides.values()]
        if len(set(answers)) > 1 or not answers[0].strip():
            faults.append(f"the pack of {name} is continued by {answers}")
    return faults


def _compile(arm: str) -> list[str]:
    """Kernels that the emulator compiles to other bytes."""
    differing = _output(arm, ["-m", "lab.arm.instructions"]).splitlines()
    return [f"{kernel}: other instructions than outside" for kernel in differing]


STEPS: dict[str, Callable[[str], list[str]]] = {
    "compile": _compile,
    "packs": _packs,
    "tokens": _tokens,
    "tests": _tests,
}


def _output(python: str, words: Sequence[str]) -> str:
    pipe, command = subprocess.PIPE, [python, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(python), stdout=pipe, text=True, check=False
    )
    if done.returncode:
        raise KvarnError(f"arm: {' '.join(words[:4])} by {python} ended with {done.returncode}")
    return done.stdout


def _write_models() -> None:
    MODELS.mkdir(exist_ok=True)
    default = default_model_path()
    (MODELS / "default-q8_0.gguf").write_bytes(default.read_bytes())
    for name in TYPES:
        if not (path := MODELS / f"default-{name}.gguf").exists():
            quantise_file(default, path, mix_of(name), allow_requantise=True)
    for name in OTHERS:
        if not (path := MODELS / f"random-{name}.gguf").exists():
            write_model(path, name, RANDOM)


if __name__ == "__main__":
    sys.exit(main())
