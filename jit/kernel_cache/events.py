"""Tells a listener and the logger of compilations, which take seconds each. Imports no Numba."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...system.terminal import say
from .files import Counts

Listener = Callable[[str, float | None], None]

_log = logging.getLogger("kvarn")


class _State:
    """State of this process.

    listener      gets each compilation
    is_compiling  whether a kernel is being compiled, with the functions that it calls
    warned        whether the user knows that some kernel was not kept
    """

    listener: Listener | None = None
    is_compiling = warned = False


def on_compile(listener: Listener | None = None) -> None:
    """Call `listener(kernel, None)` before the compilation of a kernel and `listener(kernel,
    seconds)` after it. There is one listener; None removes it.

    The thread that compiles calls it, and the computation that needs the kernel waits. The logger
    "kvarn" always gets a record of level INFO.
    """
    _State.listener = listener


@contextmanager
def compiling(kernel: str) -> Iterator[None]:
    """Report the kernel that the block compiles, and count the seconds.

    Functions that are compiled as parts of another one are not reported.
    """
    if _State.is_compiling:
        yield
        return
    begin, _State.is_compiling = time.perf_counter(), True
    try:
        _log.info("compiling %s", kernel)
        _tell(kernel, None)
        yield
    finally:
        seconds, _State.is_compiling = time.perf_counter() - begin, False
        Counts.seconds += seconds
        _log.info("compiled %s in %.1f s", kernel, seconds)
        _tell(kernel, seconds)


def tell_not_kept(kernel: str, line: str) -> None:
    """Report a kernel for which every process needs Numba: each one to the logger, the first one to
    the user."""
    _log.info("%s: %s", line, kernel)
    if not _State.warned:
        _State.warned = True
        say(f"{line}: {kernel}")


def _tell(kernel: str, seconds: float | None) -> None:
    if _State.listener is not None:
        _State.listener(kernel, seconds)
