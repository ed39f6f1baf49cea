"""What the queue and its workers tell each other: jobs, events, and who may do what.

A *node* is a machine by the name that messages give it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..system.errors import KvarnError


class NodeUnfit(KvarnError):
    """A job failed for a reason of its machine, such as a full disk: another one may do it."""


class JobBusy(KvarnError):
    """Another process is at the job; it may be free later."""


@dataclass(frozen=True)
class WorkerStarting:
    """A worker is being started on a node."""

    worker: str
    node: str


@dataclass(frozen=True)
class WorkerReady:
    """A worker has started, or started again, and waits for a job. facts: what it told."""

    worker: str
    facts: Any


@dataclass(frozen=True)
class JobProgress:
    """A worker has done `done` of `total` units of its job."""

    worker: str
    done: int
    total: int


@dataclass(frozen=True)
class JobEnded:
    """A worker has ended its job, and waits for the next. result: a `KvarnError` if it failed."""

    worker: str
    result: Any


@dataclass(frozen=True)
class WorkerDied:
    """The process of a worker is gone, with its job, and is being started again."""

    worker: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone for good. machine_is: whether its machine is, for which another may come."""

    worker: str
    reason: str
    machine_is: bool = False


Event: TypeAlias = WorkerStarting | WorkerReady | JobProgress | JobEnded | WorkerDied | WorkerLost


class Workers(ABC):
    """Processes on nodes, each of which works on one job at a time."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """What has happened since the last call; waits at most so long for the first event."""

    @abstractmethod
    def start(self, worker: str, work: Any) -> None:
        """Give a ready worker its job."""

    @abstractmethod
    def restart(self, worker: str) -> None:
        """End the process of a worker that hangs; `WorkerDied` or `WorkerLost` then tells of it."""

    @abstractmethod
    def drop(self, worker: str) -> None:
        """Stop a worker for good; no event tells of it."""


class Placement(ABC):
    """Which nodes may do which jobs."""

    @abstractmethod
    def may_run(self, key: str, node: str, nodes: frozenset[str]) -> bool:
        """Whether a job is for a node, of all those that have workers."""

    @abstractmethod
    def admit(self, node: str, facts: Any) -> None:
        """Take the facts of a worker of the node, which has started. Raises `KvarnError` if it does
        not fit the others: it is left out."""

    @abstractmethod
    def record_death(self, key: str, node: str, done: int) -> None:
        """Note that a worker of the node died of a job, of which it had done so much."""


@dataclass(frozen=True)
class Job:
    """key: its name, each once in a run. make: makes what travels to the worker, when its turn
    comes; may raise `KvarnError` and OSError."""

    key: str
    make: Callable[[], Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a job. node: "" if no worker has ended it."""

    key: str
    node: str
    result: Any
