"""Compiling kernels ahead, in as many processes as the CPU has cores."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from ...jit import machine
from ...runtime.memory import available_bytes
from ...system.children import end_with_parent
from ...system.errors import KvarnError
from ...system.terminal import say
from ...system.text import one_line
from .progress import TICK_SECONDS, Elapsed

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import Queue
    from multiprocessing.connection import Connection

    from ...jit.launch import LazyKernel
    from ...runtime.model import Model
    from ...runtime.rehearsal import Rehearsal

_log = logging.getLogger("kvarn")

WORKER_BYTES = 512 << 20
"""Memory of a process that compiles, beside the model's matrices that it repacks."""
FINDING_SECONDS = 120.0
"""Without news of it, after which looking for kernels is given up; a task takes some seconds."""


class Task(Protocol):
    """A run that compiles kernels, in a process with `n_bytes` of matrices."""

    @property
    def name(self) -> str: ...

    @property
    def n_bytes(self) -> int: ...

    def __call__(self) -> None: ...


class AheadCompiler:
    """For `on_compile`: before the first kernel that has to be compiled, compiles all of `tasks`.

    A kernel that none of them used is compiled when it is called; the first such one is reported.
    """

    def __init__(self, tasks: Sequence[Rehearsal]) -> None:
        self._tasks, self._has_run, self._has_reported = tasks, False, False
        self._shown = ExitStack()

    def __call__(self, kernel: str, seconds: float | None) -> None:
        self._shown.close()
        if seconds is not None:
            return
        if not self._has_run:
            self._has_run = True
            say("compiling kernels, on first use; `kvarn build` does it ahead")
            compile_missing(self._tasks, say)
        elif not self._has_reported:
            self._has_reported = True
            say(f"compiling {one_line(kernel)} and other missing kernels …")
        self._shown.enter_context(Elapsed(lambda: _progress(_n_compiled())))

    def begin(self, model: Model) -> None:
        """Compile the missing kernels of the tasks, before any work. A task that ran before does
        not run again: its kernels are in the cache. One that cannot run is reported."""
        for task in self._tasks:
            if task.is_compiled(model):
                continue
            try:
                with self._shown:
                    self._shown.enter_context(Elapsed(lambda: "looking for kernels"))
                    task(model)
            except KvarnError as error:
                say(f"cannot compile ahead for {one_line(task.name)}: {error}")


def _progress(n_compiled: int) -> str:
    return f"compiling kernels: {n_compiled} functions done"


def compile_all(tasks: Sequence[Task], say: Callable[[str], None]) -> int:
    """Run the tasks and report what each has compiled; returns the number of functions.

    If a process ends before its task, the remaining tasks do not run, and a line says so.
    """
    from concurrent.futures import as_completed

    total = 0
    with _pool(min(_workers(tasks), len(tasks)), say) as (pool, shown, _):
        running = {pool.submit(_timed, task): task for task in tasks}
        for done, future in enumerate(as_completed(running), 1):
            compiled, seconds = future.result()
            total += compiled
            result = f"{compiled} functions in {seconds:.1f} s" if compiled else "in the cache"
            shown.clear()
            say(f"[{done}/{len(tasks)}] {running[future].name}: {result}")
    return total


def compile_missing(tasks: Sequence[Rehearsal], say: Callable[[str], None]) -> None:
    """Compile the kernels that the tasks need and report that.

    A process of its own runs the tasks without launches, to find the kernels, and the others
    compile them as they are found. Nobody compiles a kernel twice, or waits for one that another
    process compiles.
    """
    n_workers, begin = _workers(tasks), time.perf_counter()
    with _pool(n_workers, say) as (pool, shown, found):
        compiling = [pool.submit(_compile_found) for _ in range(n_workers)]
        if fault := _find_all(tasks, found):
            shown.clear()
            say(fault)
        for _ in compiling:
            found.put(None)
        compiled = sum(future.result() for future in compiling)
        shown.clear()
        say(f"compiled {compiled} functions in {time.perf_counter() - begin:.1f} s")


def _find_all(tasks: Sequence[Rehearsal], found: Queue[LazyKernel | None]) -> str:
    """Have a process find the missing kernels of the tasks, and put them into the queue. Returns
    why it ended early, or "". It has a pipe of its own: killed, it cannot leave the queue locked.
    """
    from multiprocessing import get_context

    spawning = get_context("spawn")
    news, writer = spawning.Pipe(duplex=False)
    finder = spawning.Process(target=_find, args=(tasks, writer), daemon=True)
    finder.start()
    writer.close()  # so that the pipe ends with the process
    try:
        while news.poll(FINDING_SECONDS):
            if (kernel := news.recv()) is not None:
                found.put(kernel)
    except (EOFError, OSError):
        finder.join()
        return "" if finder.exitcode == 0 else "the process that looked for kernels ended early"
    finally:
        finder.kill()
        finder.join()
        news.close()
    return f"looking for kernels stopped after {FINDING_SECONDS:.0f} s without a new one"


@contextmanager
def _pool(
    n_workers: int, say: Callable[[str], None]
) -> Iterator[tuple[ProcessPoolExecutor, Elapsed, Queue[LazyKernel | None]]]:
    """Processes that compile, what shows how far they are, and the queue of what they compile. A
    line says if one ends early."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    spawning = get_context("spawn")
    n_compiled, found = spawning.Value("q", 0), spawning.Queue()
    pool = ProcessPoolExecutor(n_workers, spawning, _begin, (n_compiled, found))
    try:
        with Elapsed(lambda: _progress(n_compiled.value)) as shown:
            yield pool, shown, found
    except BrokenProcessPool:
        say("a process that compiled kernels ended early (out of memory?)")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _workers(tasks: Sequence[Task]) -> int:
    """Processes that cores and memory allow, at least one."""
    fitting = available_bytes() // max(WORKER_BYTES + task.n_bytes for task in tasks)
    return max(1, min(machine.physical_cores(), fitting))


class _Worker:
    """State of a process that compiles: kernels that were found, then None for each such one."""

    found: Queue[LazyKernel | None]


def _find(tasks: Sequence[Rehearsal], news: Connection) -> None:
    """Send the missing kernels of the tasks, and None before each task."""
    end_with_parent()
    warnings.simplefilter("ignore")  # of numbers, which have no meaning here
    for task in tasks:
        news.send(None)
        try:
            task.find_kernels(news.send)
        except Exception as error:  # a check of such numbers can end it
            _log.info("looking for kernels of %s ended early: %r", task.name, error)


def _compile_found() -> int:
    """Compile kernels until there are no more; returns the functions compiled."""
    compiled = _n_compiled()
    while kernel := _Worker.found.get():
        kernel.compile()
    return _n_compiled() - compiled


def _begin(n_compiled: Any, found: Queue[LazyKernel | None]) -> None:
    """Prepare a worker: it adds the functions that it compiles to a number that all share."""
    end_with_parent()
    _Worker.found = found
    Thread(target=_count, args=(n_compiled,), daemon=True).start()


def _count(n_compiled: Any) -> None:
    counted = 0
    while True:
        time.sleep(TICK_SECONDS)
        now = _n_compiled()
        with n_compiled.get_lock():
            n_compiled.value += now - counted
        counted = now


def _timed(task: Task) -> tuple[int, float]:
    """Run a task in a worker; returns the functions that it compiled, and its seconds."""
    compiled, begin = _n_compiled(), time.perf_counter()
    task()
    return _n_compiled() - compiled, time.perf_counter() - begin


def _n_compiled() -> int:
    """Functions that this process has compiled."""
    from ...jit.kernel_cache import Counts  # imports llvmlite

    return Counts.compiled
