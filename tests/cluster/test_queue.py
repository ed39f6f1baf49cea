"""Jobs are done once each, whatever happens to workers and machines, or are named."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.cluster import queue as module
from kvarn.cluster.jobs import (
    Event,
    Job,
    JobBusy,
    JobEnded,
    JobProgress,
    NodeUnfit,
    Outcome,
    WorkerDied,
    WorkerLost,
    WorkerReady,
)
from kvarn.cluster.queue import Queue
from kvarn.runtime.packs.notes import MOST_DEATHS
from kvarn.system.errors import KvarnError

from .queues import AnyNode, coming, done, jobs, queued
from .workers import Script, Scripted


def test_each_job_is_done_once_in_order() -> None:
    queue, workers, lines = queued(done, "a-0", "b-0")
    queue.gather()
    outcomes = list(queue.run(jobs(*"12345")))
    assert [outcome.result for outcome in outcomes] == [f"{n} done" for n in range(1, 6)]
    assert [work for _, work in workers.started] == list("12345")
    assert {outcome.node for outcome in outcomes} == {"a", "b"} and lines == []


def test_a_job_whose_worker_died_is_given_out_again() -> None:
    left = ["2"]

    def script(worker: str, work: Any) -> list[Event]:
        if work in left:
            left.remove(work)
            return [JobProgress(worker, 7, 9), WorkerDied(worker), WorkerReady(worker, None)]
        return done(worker, work)

    placing = AnyNode()
    queue, workers, lines = queued(script, "a-0", placing=placing)
    assert [one.key for one in queue.run(jobs(*"123"))] == ["1", "2", "3"]
    assert [work for _, work in workers.started] == ["1", "2", "2", "3"]
    assert placing.deaths == [("2", "a", 7)]
    assert lines == ["a: the worker died; 2 is given out again"]


class Ticking(Scripted):
    """Each wait takes a second of a clock that the queue reads, as `time.monotonic`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> list[Event]:
        self.now += 1
        return super().wait(seconds)


def ticking(
    script: Script, monkeypatch: pytest.MonkeyPatch, *workers: str
) -> tuple[Queue, Ticking, list[str]]:
    lines: list[str] = []
    scripted = Ticking(coming(*workers), script)
    monkeypatch.setattr(module, "time", scripted)
    return Queue(scripted, AnyNode(), lines.append), scripted, lines


def test_a_worker_that_hangs_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells how far it is and then nothing more; its process is there."""
    hangs = ["2"]

    def script(worker: str, work: Any) -> list[Event]:
        if work in hangs:
            hangs.remove(work)
            return [JobProgress(worker, 7, 9)]
        return done(worker, work)

    queue, workers, lines = ticking(script, monkeypatch, "a-0")
    assert [one.result for one in queue.run(jobs(*"123"))] == ["1 done", "2 done", "3 done"]
    assert workers.restarted == ["a-0"]
    assert lines == [
        "a: the worker has not answered in 300 s",
        "a: the worker died; 2 is given out again",
    ]
    assert module.SILENCE_SECONDS < workers.now < module.SILENCE_SECONDS + 20


def test_a_worker_that_answers_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it gets no further, as one that loads a model."""
    told: list[Event] = [JobProgress("a-0", 0, 9)] * 1000
    queue, workers, _ = ticking(lambda worker, work: told + done(worker, work), monkeypatch, "a-0")
    assert [one.result for one in queue.run(jobs("1"))] == ["1 done"]
    assert workers.restarted == [] and workers.now > 1000


def test_time_that_the_caller_takes_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a command that was stopped and goes on."""

    def script(worker: str, work: Any) -> list[Event]:
        return done(worker, work) if worker == "a-0" else []

    queue, workers, _ = ticking(script, monkeypatch, "b-0", "a-0")
    queue.gather()
    ends = queue.run(jobs(*"123"))
    for _ in range(2):
        assert next(ends).node == "a"
        workers.now += 10 * module.SILENCE_SECONDS
    workers._events.extend(done("b-0", "1"))
    assert next(ends).result == "1 done" and workers.restarted == []


def test_a_job_that_kills_workers_is_given_up_and_named() -> None:
    def script(worker: str, work: Any) -> list[Event]:
        if work == "2":
            return [JobProgress(worker, 5, 9), WorkerDied(worker), WorkerReady(worker, None)]
        return done(worker, work)

    queue, workers, _ = queued(script, "a-0")
    outcomes = {one.key: one.result for one in queue.run(jobs(*"123"))}
    assert Counter(work for _, work in workers.started)["2"] == MOST_DEATHS
    assert isinstance(outcomes["2"], KvarnError) and "4 workers died of it" in str(outcomes["2"])
    assert (outcomes["1"], outcomes["3"]) == ("1 done", "3 done")


def test_a_job_that_gets_further_each_time_is_not_given_up() -> None:
    reached = iter(range(1, 30))

    def script(worker: str, work: Any) -> list[Event]:
        n = next(reached)
        end: list[Event] = [WorkerDied(worker), WorkerReady(worker, None)]
        return done(worker, work) if n > 20 else [JobProgress(worker, n, 99), *end]

    queue, _, _ = queued(script, "a-0")
    assert [one.result for one in queue.run(jobs("1"))] == ["1 done"]


def test_a_busy_job_is_tried_again_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    left, tries = ["1", "1"], list[float]()

    def script(worker: str, work: Any) -> list[Event]:
        if work == "1":
            tries.append(time.monotonic())
        if work in left:
            left.remove(work)
            return [JobEnded(worker, JobBusy("busy"))]
        return done(worker, work)

    queue, workers, lines = queued(script, "a-0")
    assert [one.key for one in queue.run(jobs(*"12"))] == ["2", "1"]
    assert [work for _, work in workers.started] == ["1", "2", "1", "1"]
    assert lines == ["a: busy; 1 waits until it has ended"]
    assert all(b - a >= 0.05 for a, b in pairwise(tries))  # not asked all the time


def test_a_job_that_cannot_be_made_is_named_and_stops_no_other() -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory", "x.txt")

    queue, _, _ = queued(done, "a-0")
    outcomes = list(queue.run([Job("x", gone), *jobs("1")]))
    assert str(outcomes[0].result) == "x.txt: no such file or folder"
    assert outcomes[1] == Outcome("1", "a", "1 done")


@given(st.data())
def test_whatever_happens_each_job_ends_once(data: st.DataObject) -> None:
    """Workers die, machines go and are unfit, as drawn; as long as one machine stays."""

    def script(worker: str, work: Any) -> list[Event]:
        mortal = worker.startswith("m")
        kinds = ["done", "died", *(["gone", "unfit"] if mortal else [])]
        kind = data.draw(st.sampled_from(kinds))
        if kind == "died":
            return [WorkerDied(worker), WorkerReady(worker, None)]
        if kind == "gone":
            return [WorkerLost(worker, "gone", True)]
        return [JobEnded(worker, NodeUnfit("full"))] if kind == "unfit" else done(worker, work)

    names = [str(n) for n in range(data.draw(st.integers(0, 8)))]
    queue, workers, _ = queued(script, "stays-0", "m1-0", "m2-0", "m2-1")
    queue.gather()
    outcomes = list(queue.run(jobs(*names)))
    assert sorted(one.key for one in outcomes) == names
    started = Counter(work for _, work in workers.started)
    for one in outcomes:
        if isinstance(one.result, KvarnError):
            assert started[one.key] >= MOST_DEATHS and "workers died of it" in str(one.result)
        else:
            assert one.result == f"{one.key} done"
    assert queue.running == {}
