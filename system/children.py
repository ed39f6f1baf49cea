"""Child processes: those that share the work of their parent, and how any of them ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from threading import Thread
from typing import TYPE_CHECKING, Any

from .errors import message_of
from .spelling import Spelling, current, spell

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    Say = Callable[[str], None]
    Help = Callable[[Any, Say], None]

_PATIENCE = 0.1
"""Seconds between two checks whether a process has ended."""


@contextmanager
def run_helpers(n: int, helper: Help, task: Any, say: Say) -> Iterator[None]:
    """Runs `helper(task, say)` in `n` more processes beside the block, and waits for them.

    After the block, `say` gets each line of theirs once. A process can end early (out of memory?);
    the block has to do the work that it leaves, and a line tells of it. An error in the block ends
    the processes.
    """
    from multiprocessing import get_context

    spawning = get_context("spawn")
    lines: Queue[str] = spawning.Queue()
    given = helper, task, lines, current()
    processes = [spawning.Process(target=_help, args=given) for _ in range(n)]
    try:
        for process in processes:
            process.start()
        yield
        shown: set[str] = set()
        while not lines.empty() or any(process.is_alive() for process in processes):
            try:
                line = lines.get(timeout=_PATIENCE)
            except Empty:
                continue
            if line not in shown:
                shown.add(line)
                say(line)
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()
    if any(process.exitcode for process in processes):
        say("a process that took a part of the work ended early")


def _help(helper: Help, task: Any, lines: Queue[str], spelling: Spelling) -> None:
    end_with_parent()
    spell(spelling)
    try:
        helper(task, lines.put)
    except Exception as error:
        lines.put(message_of(error))
        raise SystemExit(1) from None


def end_with_parent() -> None:
    """In a process that `multiprocessing` started: end without a traceback at Ctrl-C, and when the
    parent ends, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def ending(code: int) -> str:
    """How a process with this return code ended, in words: -9 is signal 9."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"
