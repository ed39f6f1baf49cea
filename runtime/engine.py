"""One engine thread per process runs all kernels.

Numba's threading layers want a single caller: `workqueue` aborts the process when two threads enter
it, and `omp` keeps a pool of workers for each calling thread. So all that computes is queued on
this thread: commands, the Python API from any thread, and the C API.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ..jit import forks
from ..system.errors import KvarnError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

_THREAD_NAME = "kvarn-engine"
_starting = threading.Lock()


class EngineError(KvarnError):
    """The engine accepts no more work."""


@cache
def _engine() -> ThreadPoolExecutor:
    """The engine, with its thread running.

    An interrupt while the thread starts would leave a thread that nothing ends with the process, so
    interrupts wait until it has started.
    """
    # Fails while the interpreter shuts down, which `on_engine` reports.
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=_THREAD_NAME)
    with _block_signals():
        executor.submit(int).result()
    return executor


@contextmanager
def _block_signals() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_engine(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` on the engine thread and return its result (about 30 µs more than a call).

    An interrupt (Ctrl-C) is raised in the waiting thread once `function` has ended, or has been
    cancelled before it began. So no kernel or store stops half-way, and a caller that goes on
    finds all of a step or nothing of it. A second interrupt is raised at once.

    Raises `OpsError` in a process forked from one that had an engine, and `EngineError` while the
    interpreter shuts down.
    """
    forks.check()
    if threading.current_thread().name.startswith(_THREAD_NAME):
        return function(*args, **kwargs)
    try:
        with _starting:  # threads that ask at the same time get the same engine
            engine = _engine()
        future = engine.submit(function, *args, **kwargs)
    except RuntimeError as error:  # how an executor refuses
        raise EngineError(
            f"cannot compute while the program ends ({error}): let it wait for its threads first"
        ) from error
    try:
        return future.result()
    except KeyboardInterrupt:
        from concurrent.futures import wait

        if not future.cancel():
            wait([future])
        raise


def engine_method(method: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run the method on the engine thread, whoever calls it."""

    @wraps(method)
    def queued(*args: P.args, **kwargs: P.kwargs) -> R:
        return on_engine(method, *args, **kwargs)

    return queued
