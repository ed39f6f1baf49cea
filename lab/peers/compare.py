"""Runs both workers alternately, and measures the memory's read bandwidth in between."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvarn.ops.measure import read_rate
from kvarn.runtime.engine import on_engine
from kvarn.system.errors import KvarnError

BUSY = 0.15
"""Share of the CPU that others may use before a measurement is refused."""


@dataclass(frozen=True)
class Row:
    """One comparison: medians over the rounds, in `unit` ("t/s", "s" or "ms").

    ratio        how many times better kvarn is
    of_memory    decode: share of the tokens per second that are possible when weights and KV cache
                 are read at `bandwidth`
    bandwidth    GB/s, measured between the rounds
    kvarn_extra  peak resident bytes of kvarn beyond the model's file and the KV cache
    """

    kind: str
    test: str
    depth: int
    unit: str
    kvarn: float
    llama: float | None = None
    llama_flash: bool = False
    ratio: float | None = None
    of_memory: float | None = None
    bandwidth: float | None = None
    kvarn_bytes: int = 0
    kvarn_extra: int = 0
    llama_bytes: int = 0

    def __str__(self) -> str:
        peer = f", llama.cpp {self.llama:.4g}" if self.llama else ""
        ratio = f", ratio {self.ratio:.2f}" if self.ratio else ""
        what = f"{self.kind} {self.test} at {self.depth}"
        return f"{what}: kvarn {self.kvarn:.4g}{peer} {self.unit}{ratio}"


class Worker:
    """A peer in a process of its own."""

    def __init__(self, module: str, settings: dict[str, Any]) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{module}", json.dumps(settings)],
            # Cached bytecode of modules is part of a warm start.
            env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.peak_bytes = 0
        self.facts = self._answer()
        self.start_seconds = time.perf_counter() - began

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
    """The rows of one file: start-up, each case at each depth, and launching empty kernels.

    Where `options.prefill_only` is set, the cases alone.
    """
    shared = {"path": str(path), "n_ctx": max(depths) + 1024, "threads": options.threads}
    shared.update(kv_type=options.kv_type, n_read=options.n_read)
    if not options.prefill_only:
        check_idle()
        yield _start_up(kind, shared, options.rounds)
    with ExitStack() as stack:
        ours = stack.enter_context(Worker("worker_kvarn", shared))
        theirs = [
            stack.enter_context(Worker("worker_llama", {**shared, "flash": flash}))
            for flash in (False, True)
        ]
        for depth in depths:
            for test, sizes in cases.items():
                check_idle()
                yield _row(kind, test, depth, ours, theirs, sizes, options.rounds)
    if options.prefill_only:
        return
    with Worker("worker_kvarn", {**shared, "empty": True}) as empty:
        check_idle()
        empty.speed(0, 8, 0)
        times = [1e3 / empty.speed(0, 64, 0) for _ in range(options.rounds)]
        yield Row(kind, "launching a token's kernels", 0, "ms", statistics.median(times))


def _start_up(kind: str, settings: dict[str, Any], rounds: int) -> Row:
    """Seconds from starting a process to having read a first token; files and kernels cached."""
    times: dict[str, list[float]] = {"worker_kvarn": [], "worker_llama": []}
    for _ in range(rounds):
        for module, seconds in times.items():
            flash = {} if module == "worker_kvarn" else {"flash": True}
            with Worker(module, {**settings, **flash}) as worker:
                seconds.append(worker.start_seconds)
    ours, theirs = (statistics.median(seconds) for seconds in times.values())
    return Row(kind, "start-up", 0, "s", ours, theirs, True, theirs / ours)


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
        bandwidths.append(on_engine(read_rate) / 1e9)
    medians = [statistics.median(column) for column in zip(*speeds)]
    bandwidth, flash = statistics.median(bandwidths), medians[2] > medians[1]
    facts, best = ours.facts, max(medians[1:])
    bytes_read = facts["weight_bytes_per_token"] + depth * facts["kv_bytes_per_token"]
    kept = facts["file_bytes"] + (depth + sum(sizes)) * facts["kv_bytes_per_token"]
    return Row(
        kind, test, depth, "t/s", medians[0], best, flash, medians[0] / best,
        None if sizes[0] else medians[0] * bytes_read / bandwidth / 1e9,
        bandwidth, ours.peak_bytes, ours.peak_bytes - int(kept), theirs[flash].peak_bytes,
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
