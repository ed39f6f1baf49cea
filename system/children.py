"""Processes that take a part of the work of another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from queue import Empty
from threading import Thread
from typing import TYPE_CHECKING, Any

from .errors import message_of

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    Say = Callable[[str], None]
    Help = Callable[[Any, Say], None]

_PATIENCE = 0.1
"""Seconds between two looks at whether a process has ended."""


@contextmanager
def helped(n: int, helper: Help, about: Any, say: Say) -> Iterator[None]:
    """Runs `helper(about, say)` in `n` more processes beside the block, and waits for them.

    What they say is told after the block, each line once. The block has to do what a process leaves
    that ends early (out of memory?); a line says so. An error in the block ends them.
    """
    spawning = get_context("spawn")
    lines: Queue[str] = spawning.Queue()
    processes = [spawning.Process(target=_help, args=(helper, about, lines)) for _ in range(n)]
    try:
        for process in processes:
            process.start()
        yield
        told: set[str] = set()
        while not lines.empty() or any(process.is_alive() for process in processes):
            try:
                line = lines.get(timeout=_PATIENCE)
            except Empty:
                continue
            if line not in told:
                told.add(line)
                say(line)
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()
    if any(process.exitcode for process in processes):
        say("a process that took a part of the work ended early")


def _help(helper: Help, about: Any, lines: Queue[str]) -> None:
    end_with_parent()
    try:
        helper(about, lines.put)
    except Exception as error:
        lines.put(message_of(error))
        raise SystemExit(1) from None


def end_with_parent() -> None:
    """In a process started by `multiprocessing`: Ctrl-C ends it without a traceback, and so does
    the end of its parent, which may have been killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
