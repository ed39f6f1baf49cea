"""Queues of tests: jobs, and workers that do what a script says."""

from __future__ import annotations

from typing import Any

from kvarn.cluster.jobs import (
    Event,
    Job,
    JobEnded,
    Placement,
    WorkerReady,
    WorkerStarting,
)
from kvarn.cluster.queue import Queue
from kvarn.system.errors import KvarnError

from .workers import Script, Scripted


class AnyNode(Placement):
    """homes: the nodes of jobs that not all may do; refused: facts of workers that do not fit."""

    def __init__(self, homes: dict[str, set[str]] | None = None, refused: object = None) -> None:
        self.homes, self.refused = homes or {}, refused
        self.deaths: list[tuple[str, str, int]] = []

    def may_run(self, key: str, node: str, nodes: frozenset[str]) -> bool:
        return node in self.homes.get(key, nodes)

    def admit(self, node: str, facts: Any) -> None:
        if facts == self.refused and facts is not None:
            raise KvarnError("it does not fit")

    def record_death(self, key: str, node: str, done: int) -> None:
        self.deaths.append((key, node, done))


def coming(*workers: str) -> list[Event]:
    """Workers that have started, each named NODE-N."""
    started: list[Event] = [WorkerStarting(worker, worker.partition("-")[0]) for worker in workers]
    return started + [WorkerReady(worker, None) for worker in workers]


def jobs(*keys: str) -> list[Job]:
    return [Job(key, lambda key=key: key) for key in keys]


def queued(
    script: Script, *workers: str, placing: Placement | None = None
) -> tuple[Queue, Scripted, list[str]]:
    lines: list[str] = []
    scripted = Scripted(coming(*workers), script)
    return Queue(scripted, placing or AnyNode(), lines.append), scripted, lines


def done(worker: str, work: Any) -> list[Event]:
    return [JobEnded(worker, f"{work} done")]
