"""Compiling kernels ahead, in as many processes as the CPU has cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING

from ...jit import machine
from ...runtime.memory import available_bytes
from ...system.children import end_with_parent
from ...system.text import one_line
from .notices import notice

if TYPE_CHECKING:
    from ...runtime.rehearsal import Rehearsal

    Task = Callable[[], None]

WORKER_BYTES = 512 << 20
"""Memory of a process that compiles, beside the model's matrices that it repacks."""


class FirstUse:
    """For `on_compile`: before the first kernel that has to be compiled, compiles all of `tasks`.

    A kernel that none of them used is compiled where it is called, which is said once.
    """

    def __init__(self, tasks: Callable[[], Sequence[Rehearsal]]) -> None:
        self._tasks, self._told, self._ran = tasks, False, False

    def __call__(self, kernel: str, seconds: float | None) -> None:
        if seconds is not None:
            return
        if not self._ran:
            self._ran = True
            tasks = self._tasks()
            notice("compiling kernels, on first use; `kvarn build` does it ahead")
            compile_all(tasks, notice)
        elif not self._told:
            self._told = True
            notice(f"compiling {one_line(kernel)} and what else is missing …")


def compile_all(tasks: Sequence[Rehearsal], say: Callable[[str], None]) -> int:
    """Run the tasks, telling of each what it has compiled; returns the number of kernels.

    Where a process ends before its task, the tasks left are not run: a line tells.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    total, n_workers = 0, _workers(tasks)
    pool = ProcessPoolExecutor(n_workers, get_context("spawn"), end_with_parent)
    try:
        running = {pool.submit(_timed, task): task for task in tasks}
        for done, future in enumerate(as_completed(running), 1):
            compiled, seconds = future.result()
            total += compiled
            what = f"{compiled} functions in {seconds:.1f} s" if compiled else "in the cache"
            say(f"[{done}/{len(tasks)}] {running[future].name}: {what}")
    except BrokenProcessPool:
        say("a process that compiled kernels ended early (out of memory?)")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return total


def _workers(tasks: Sequence[Rehearsal]) -> int:
    """Processes that cores and memory allow, at least one."""
    fitting = available_bytes() // max(WORKER_BYTES + task.n_bytes for task in tasks)
    return max(1, min(machine.physical_cores(), len(tasks), fitting))


def _timed(task: Task) -> tuple[int, float]:
    """In a worker: kernels compiled by a task, and its seconds."""
    from ...jit.kernel_cache import Counts

    compiled, begin = Counts.compiled, time.perf_counter()
    task()
    return Counts.compiled - compiled, time.perf_counter() - begin
