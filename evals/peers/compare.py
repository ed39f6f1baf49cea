"""Asking both workers in turn, and what the machine could do meanwhile."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...ops.errors import KvarnError
from ...ops.measure import roofline

BUSY = 0.15
"""Share of the CPU that others may use before a measurement is refused."""


@dataclass(frozen=True)
class Row:
    """One comparison; speeds in tokens per second, medians over the rounds."""

    kind: str
    test: str
    depth: int
    kvarn: float
    llama: float
    llama_flash: bool
    ratio: float
    bandwidth: float
    kvarn_bytes: int
    llama_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.test} at {self.depth}: kvarn {self.kvarn:.1f}, "
            f"llama.cpp {self.llama:.1f} t/s, ratio {self.ratio:.2f}"
        )


class Worker:
    """A peer in a process of its own."""

    def __init__(self, module: str, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{module}", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.n_tokens = 0
        self.peak_bytes = 0
        self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def speed(self, n_prompt: int, n_gen: int, depth: int) -> float:
        """Tokens per second of one command."""
        assert self.process.stdin is not None
        command = {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.peak_bytes = answer["peak_bytes"]
        return float((n_prompt + n_gen) / answer["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise KvarnError(f"a peer ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare_file(
    path: Path,
    kind: str,
    cases: dict[str, tuple[int, int]],
    depths: list[int],
    options: argparse.Namespace,
) -> Iterator[Row]:
    """One row for each case and depth."""
    n_ctx = max(depths) + 1024
    shared = {"path": str(path), "n_ctx": n_ctx, "threads": options.threads}
    shared["kv_type"] = options.kv_type
    with ExitStack() as stack:
        check_idle()
        ours = stack.enter_context(Worker("worker_kvarn", shared))
        theirs = [
            stack.enter_context(Worker("worker_llama", {**shared, "flash": flash}))
            for flash in (False, True)
        ]
        for depth in depths:
            for test, (n_prompt, n_gen) in cases.items():
                check_idle()
                yield _row(kind, test, depth, ours, theirs, (n_prompt, n_gen), options.rounds)


def _row(
    kind: str,
    test: str,
    depth: int,
    ours: Worker,
    theirs: list[Worker],
    sizes: tuple[int, int],
    rounds: int,
) -> Row:
    workers, speeds, bandwidths = [ours, *theirs], [], []
    for worker in workers:  # fills the context and warms the caches
        worker.speed(min(sizes[0], 8), min(sizes[1], 2), depth)
    for _ in range(rounds):
        speeds.append([worker.speed(*sizes, depth) for worker in workers])
        bandwidths.append([rate for _, rate in roofline()][-1] / 1e9)
    medians = [statistics.median(column) for column in zip(*speeds)]
    flash = medians[2] > medians[1]
    best = max(medians[1:])
    return Row(
        kind, test, depth, medians[0], best, flash, medians[0] / best,
        statistics.median(bandwidths), ours.peak_bytes, theirs[flash].peak_bytes,
    )  # fmt: skip


def check_idle(seconds: float = 1.0) -> None:
    """Raise `KvarnError` where other programs use more than 15% of the CPU."""

    def busy_and_all() -> tuple[int, int]:
        fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        ticks = [int(field) for field in fields]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)

    before = busy_and_all()
    time.sleep(seconds)
    after = busy_and_all()
    share = (after[0] - before[0]) / max(1, after[1] - before[1])
    if share > BUSY:
        raise KvarnError(
            f"not measuring: other programs use {share:.0%} of the CPU (at most {BUSY:.0%} may)"
        )
