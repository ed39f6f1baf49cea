"""Who is told of kernels that are compiled, which takes seconds each. Imports no Numba."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...system.terminal import say
from .files import Counts

Listener = Callable[[str, float | None], None]

_log = logging.getLogger("kvarn")


class _Now:
    """listener      hears of each compilation; there is one terminal to tell
    is_compiling  whether a kernel is compiled, with the functions that it calls
    said          whether the user knows of a kernel that is not kept"""

    listener: Listener | None = None
    is_compiling = said = False


def on_compile(listener: Listener | None = None) -> None:
    """Call `listener(kernel, None)` before a kernel is compiled and `listener(kernel, seconds)`
    after it, instead of the listener before it; None: nobody.

    It is called on the thread that compiles, and the computation that needs the kernel waits. The
    logger "kvarn" gets a record of level INFO each time, whoever listens.
    """
    _Now.listener = listener


@contextmanager
def compiling(kernel: str) -> Iterator[None]:
    """Tell of a kernel that is compiled in the block, and count the seconds that it takes.

    Functions that are compiled as parts of another one are not told of.
    """
    if _Now.is_compiling:
        yield
        return
    begin, _Now.is_compiling = time.perf_counter(), True
    try:
        _log.info("compiling %s", kernel)
        _tell(kernel, None)
        yield
    finally:
        seconds, _Now.is_compiling = time.perf_counter() - begin, False
        Counts.seconds += seconds
        _log.info("compiled %s in %.1f s", kernel, seconds)
        _tell(kernel, seconds)


def tell_not_kept(kernel: str, line: str) -> None:
    """Tell the logger of each kernel that a process needs Numba for although it was compiled
    before, and the user of the first."""
    _log.info("%s: %s", line, kernel)
    if not _Now.said:
        _Now.said = True
        say(f"{line}: {kernel}")


def _tell(kernel: str, seconds: float | None) -> None:
    if _Now.listener is not None:
        _Now.listener(kernel, seconds)
