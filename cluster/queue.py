"""Jobs for workers on several machines: given out one at a time, and again where a worker died.

Knows neither Ray nor what the jobs are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..runtime.packs.notes import MOST_DEATHS
from ..system.errors import KvarnError, message_of
from .jobs import (
    Event,
    Job,
    JobBusy,
    JobEnded,
    JobProgress,
    NodeUnfit,
    Outcome,
    Placement,
    WorkerDied,
    WorkerReady,
    Workers,
    WorkerStarting,
)

START_SECONDS = 300.0
"""For a worker that starts, or any worker at all: machines of a cloud come within minutes."""
TICK_SECONDS = 1.0
"""For which the queue waits at most before it looks at its clocks again."""
SILENCE_SECONDS = 300.0
"""After which a worker that has not said how far its job is counts as hung: it is asked twice a
second, and answers beside the job, however long that takes."""
BUSY_SECONDS = 2.0
"""Before a job that another process is at is tried again."""


@dataclass
class RunningJob:
    """A job that a worker is at. silent: seconds for which the queue listened and heard nothing."""

    job: Job
    node: str
    done: int = 0
    total: int = 0
    silent: float = 0.0


class Queue:
    """Gives jobs out, one to each worker at a time: jobs are far apart in length.

    notice: called with lines about machines that are left out, and about jobs that wait. `running`:
    worker → what it is at.
    """

    def __init__(self, workers: Workers, placing: Placement, notice: Callable[[str], None]) -> None:
        self._workers, self._placing, self._notice = workers, placing, notice
        self._nodes: dict[str, str] = {}  # of all workers that are not gone
        self._starting: dict[str, float] = {}  # since when
        self._idle: list[str] = []
        self._empty_since: float | None = None  # while none is here, and some may come
        self._checked_at = time.monotonic()
        self._deaths: Counter[str] = Counter()
        self._furthest: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._waiting: list[Job] = []
        self.running: dict[str, RunningJob] = {}

    @property
    def nodes(self) -> frozenset[str]:
        """Those that have workers."""
        return frozenset(self._nodes.values())

    def gather(self) -> None:
        """Wait until all workers have started, so that jobs go where they are known. Raises
        `KvarnError` if none does."""
        while not self._idle or self._starting:
            self._check_timeouts()
            for event in self._workers.wait(TICK_SECONDS):
                for _ in self._handle(event):
                    pass

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Do the jobs, in this order as far as nodes may do them; yields what became of each.

        A job whose worker died is given out again, one whose node is unfit to another node. Raises
        `KvarnError` where no worker is left.
        """
        self._waiting = list(jobs)
        while self._waiting or self.running:
            yield from self._fail_unreachable()
            yield from self._assign()
            if not self._waiting and not self.running:
                break
            self._check_timeouts()
            for event in self._workers.wait(TICK_SECONDS):
                yield from self._handle(event)

    def _fail_unreachable(self) -> Iterator[Outcome]:
        """Ends jobs that no node may do which has workers."""
        nodes = self.nodes
        if not nodes:
            return  # `_check_timeouts` waits for one
        for job in list(self._waiting):
            if not any(self._placing.may_run(job.key, node, nodes) for node in nodes):
                self._waiting.remove(job)
                yield Outcome(job.key, "", KvarnError("no machine that has it is left"))

    def _assign(self) -> Iterator[Outcome]:
        nodes, now = self.nodes, time.monotonic()
        for worker in list(self._idle):
            node = self._nodes[worker]
            for job in list(self._waiting):
                if self._not_before.get(job.key, 0) > now:
                    continue
                if not self._placing.may_run(job.key, node, nodes):
                    continue
                self._waiting.remove(job)
                try:
                    work = job.make()
                except (KvarnError, OSError) as error:
                    yield Outcome(job.key, "", KvarnError(message_of(error)))
                    continue
                self._idle.remove(worker)
                self.running[worker] = RunningJob(job, node)
                self._workers.start(worker, work)
                break

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        for worker, since in list(self._starting.items()):
            if now - since > START_SECONDS:
                self._workers.drop(worker)
                self._exclude(worker, f"its worker has not started in {START_SECONDS:.0f} s")
        # What the queue's caller does between two outcomes, however long, is no silence.
        listened, self._checked_at = min(now - self._checked_at, 2 * TICK_SECONDS), now
        for worker, running in self.running.items():
            running.silent += listened
            if running.silent > SILENCE_SECONDS:
                running.silent = 0.0
                self._notice(
                    f"{running.node}: the worker has not answered in {SILENCE_SECONDS:.0f} s"
                )
                self._workers.restart(worker)
        if self._empty_since is not None and now - self._empty_since > START_SECONDS:
            raise KvarnError(f"no machine is left, and none has come in {START_SECONDS:.0f} s")

    def _handle(self, event: Event) -> Iterator[Outcome]:
        worker = event.worker
        if isinstance(event, WorkerStarting):
            self._nodes[worker], self._starting[worker] = event.node, time.monotonic()
            self._empty_since = None
        elif worker not in self._nodes:
            return  # of one that was left out
        elif isinstance(event, WorkerReady):
            del self._starting[worker]
            try:
                self._placing.admit(self._nodes[worker], event.facts)
            except KvarnError as error:
                self._workers.drop(worker)
                self._exclude(worker, str(error))
            else:
                self._idle.append(worker)
        elif isinstance(event, JobProgress):
            running = self.running[worker]
            running.done, running.total, running.silent = event.done, event.total, 0.0
        elif isinstance(event, JobEnded):
            yield from self._end_job(worker, event.result)
        else:
            yield from self._end_process(worker)
            if isinstance(event, WorkerDied):
                self._starting[worker] = time.monotonic()
            else:
                self._exclude(worker, event.reason, event.machine_is)

    def _end_job(self, worker: str, result: Any) -> Iterator[Outcome]:
        job, node = self.running[worker].job, self.running.pop(worker).node
        if isinstance(result, NodeUnfit):
            self._waiting.insert(0, job)
            self._workers.drop(worker)
            self._exclude(worker, str(result))
            return
        self._idle.append(worker)
        if isinstance(result, JobBusy):
            if job.key not in self._not_before:  # one line for each
                self._notice(f"{node}: {result}; {job.key} waits until it has ended")
            self._waiting.append(job)
            self._not_before[job.key] = time.monotonic() + BUSY_SECONDS
        else:
            yield Outcome(job.key, node, result)

    def _end_process(self, worker: str) -> Iterator[Outcome]:
        """The worker's process is gone; its job, if it had one, is given out again."""
        if worker in self._idle:
            self._idle.remove(worker)
        if worker not in self.running:
            return
        running = self.running.pop(worker)
        key = running.job.key
        if running.done > self._furthest.get(key, 0):  # the job does not kill; machines come and go
            self._furthest[key], self._deaths[key] = running.done, 0
        self._deaths[key] += 1
        self._placing.record_death(key, running.node, running.done)
        if self._deaths[key] < MOST_DEATHS:
            self._notice(f"{running.node}: the worker died; {key} is given out again")
            self._waiting.insert(0, running.job)
        else:
            error = f"given up: {MOST_DEATHS} workers died of it without getting further"
            yield Outcome(key, running.node, KvarnError(error))

    def _exclude(self, worker: str, reason: str, machine_is_gone: bool = False) -> None:
        """Count no longer on a worker. Raises `KvarnError` for the last one, unless its machine is
        gone: another may come."""
        node = self._nodes.pop(worker)
        self._starting.pop(worker, None)
        line = f"{node} is left out: {reason}"
        if self._nodes:
            self._notice(line)
        elif machine_is_gone:
            self._notice(f"{line}; waiting for another machine")
            self._empty_since = time.monotonic()
        else:
            raise KvarnError(f"no worker is left: {line}")
