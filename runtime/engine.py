"""One engine thread per process runs all kernels.

Numba's threading layers want a single caller: `workqueue` aborts the process when two threads enter
it, and `omp` keeps a pool of workers per calling thread. All who compute (the commands, the
Python API from any thread, later the server and the C API) therefore queues onto this thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
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
    """The engine takes no work."""


def _engine() -> ThreadPoolExecutor:
    """The engine, the same for all who come first at once."""
    with _starting:
        return _started()


@cache
def _started() -> ThreadPoolExecutor:
    """The engine, its thread running.

    An interrupt while the thread starts would leave one that nobody ends when the process does:
    it waits until the thread is there.
    """
    # Which cannot be imported once the interpreter is ending: `on_engine` says so.
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=_THREAD_NAME)
    with _uninterrupted():
        executor.submit(int).result()
    return executor


@contextmanager
def _uninterrupted() -> Iterator[None]:
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
    taken back before it began: no kernel and no store is ever cut in the middle, and who goes on
    after it finds either all of a step or nothing. A second one is raised at once.

    Raises `OpsError` in a process that was forked from one that had an engine, and `EngineError`
    where the interpreter is ending.
    """
    forks.check()
    if threading.current_thread().name.startswith(_THREAD_NAME):
        return function(*args, **kwargs)
    try:
        future = _engine().submit(function, *args, **kwargs)
    except RuntimeError as error:  # how an executor refuses
        raise EngineError(
            f"nothing is computed any more ({error}): have the program wait for its threads before "
            "it ends"
        ) from error
    try:
        return future.result()
    except KeyboardInterrupt:
        from concurrent.futures import wait

        if not future.cancel():
            wait([future])
        raise
