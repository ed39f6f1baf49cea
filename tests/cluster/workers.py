"""Workers without processes, which do as a test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kvarn.cluster.jobs import Event, Workers

Script = Callable[[str, Any], list[Event]]
"""What happens after a worker was given a job: its name and the work → the events that follow."""


class Scripted(Workers):
    """started: (worker, work) in the order in which jobs were given out."""

    def __init__(self, events: list[Event], script: Script) -> None:
        self._events, self._script = deque(events), script
        self.started: list[tuple[str, Any]] = []
        self.dropped: list[str] = []

    def wait(self, seconds: float) -> list[Event]:
        return [self._events.popleft()] if self._events else []

    def start(self, worker: str, work: Any) -> None:
        self.started.append((worker, work))
        self._events.extend(self._script(worker, work))

    def drop(self, worker: str) -> None:
        self.dropped.append(worker)
