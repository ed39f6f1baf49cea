"""Workers without processes, which do as a test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kvarn.cluster.jobs import (
    Event,
    JobEnded,
    WorkerDied,
    WorkerLost,
    WorkerReady,
    Workers,
    WorkerStarting,
)
from kvarn.cluster.worker import Task
from kvarn.system.errors import KvarnError

Script = Callable[[str, Any], list[Event]]
"""What happens after a worker was given a job: its name and the work → the events that follow."""


class Scripted(Workers):
    """started: (worker, work) in the order in which jobs were given out."""

    def __init__(self, events: list[Event], script: Script) -> None:
        self._events, self._script = deque(events), script
        self.started: list[tuple[str, Any]] = []
        self.restarted: list[str] = []
        self.dropped: list[str] = []

    def wait(self, seconds: float) -> list[Event]:
        return [self._events.popleft()] if self._events else []

    def start(self, worker: str, work: Any) -> None:
        self.started.append((worker, work))
        self._events.extend(self._script(worker, work))

    def restart(self, worker: str) -> None:
        self.restarted.append(worker)
        self._events += [WorkerDied(worker), WorkerReady(worker, None)]

    def drop(self, worker: str) -> None:
        self.dropped.append(worker)


class Inline(Workers):
    """Tasks of nodes, done in the test's process; `lost` nodes are gone at their next job."""

    def __init__(self, tasks: dict[str, Task]) -> None:
        self._tasks = tasks
        self._events: deque[Event] = deque(WorkerStarting(node, node) for node in tasks)
        self._events.extend(WorkerReady(node, task.facts()) for node, task in tasks.items())
        self.lost: set[str] = set()
        self.done: list[tuple[str, Any]] = []

    def wait(self, seconds: float) -> list[Event]:
        return [self._events.popleft()] if self._events else []

    def start(self, worker: str, work: Any) -> None:
        if worker in self.lost:
            self._events.append(WorkerLost(worker, "the machine is gone", True))
            return
        self.done.append((worker, work))
        try:
            result = self._tasks[worker].run(work, lambda done, total: None)
        except KvarnError as error:
            result = error
        self._events.append(JobEnded(worker, result))

    def restart(self, worker: str) -> None:
        raise AssertionError("its tasks end, or raise")

    def drop(self, worker: str) -> None:
        self._tasks.pop(worker)
