"""The process on a machine: it does one job at a time, and tells how far it is when it is asked."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .. import __version__
from ..jit.machine import physical_cores
from ..system.errors import KvarnError, message_of

_POLL_SECONDS = 0.5
"""For which a question how far a job is waits for its end."""


class Task(ABC):
    """What a worker does: lives in its process, for all of its jobs."""

    @abstractmethod
    def facts(self) -> Any:
        """What the queue has to know of this machine before it gives jobs to it."""

    @abstractmethod
    def run(self, work: Any, progress: Callable[[int, int], None]) -> Any:
        """The result of a job. progress: called with the units done and the total. Raises the
        errors of the job."""


Make: TypeAlias = Callable[[int], Task]
"""Makes a task that computes with so many threads."""


@dataclass(frozen=True)
class Report:
    """How far a job is, or its result; not `knows`: the process has none, it was started anew."""

    knows: bool
    ended: bool = False
    done: int = 0
    total: int = 0
    result: Any = None


class Worker:
    """Errors are results, never raised: what is wrong with a job does not get better by doing it
    again.

    make: makes the task, in this process. threads: of its kernels; None: as many as physical cores,
    but no more than `most`.
    """

    def __init__(self, make: Make, threads: int | None, most: int) -> None:
        self._make, self._threads = make, threads or max(1, min(physical_cores(), most))
        self._task: Task | None = None
        self._ended = threading.Event()
        self._report = Report(False)

    def hello(self, version: str) -> Any:
        """What `Task.facts` tells; a `KvarnError` if no task can be made here."""
        if version != __version__:
            return KvarnError(f"it has kvarn {__version__}, expected {version}")
        try:
            self._task = self._task or self._make(self._threads)
            return self._task.facts()
        except Exception as error:
            return KvarnError(message_of(error))

    def begin(self, work: Any) -> Report:
        """Start a job; returns what `poll` does. A process that has said no hello begins none: it
        was started anew since another one did."""
        if self._task is None:
            return Report(False)
        self._ended.clear()
        self._report = Report(True)
        threading.Thread(target=self._run, args=(self._task, work), daemon=True).start()
        return self.poll()

    def poll(self) -> Report:
        """How far the job is; its end is told at once."""
        self._ended.wait(_POLL_SECONDS)
        return self._report

    def _set_progress(self, done: int, total: int) -> None:
        self._report = Report(True, done=done, total=total)

    def _run(self, task: Task, work: Any) -> None:
        result: Any
        try:
            result = task.run(work, self._set_progress)
        except KvarnError as error:
            result = error
        except BaseException as error:
            result = KvarnError(message_of(error))
        self._report = Report(True, True, result=result)
        self._ended.set()
