"""Jobs where machines are lost, come later or do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.cluster import queue as module
from kvarn.cluster.jobs import (
    Event,
    JobEnded,
    NodeUnfit,
    WorkerLost,
    WorkerReady,
    WorkerStarting,
)
from kvarn.cluster.queue import Queue
from kvarn.system.errors import KvarnError

from .queues import AnyNode, coming, done, jobs, queued
from .workers import Scripted


def test_jobs_of_a_lost_machine_go_to_another() -> None:
    def script(worker: str, work: Any) -> list[Event]:
        return (
            [WorkerLost(worker, "the machine is gone", True)]
            if worker == "a-0"
            else done(worker, work)
        )

    queue, _, lines = queued(script, "a-0", "b-0")
    queue.gather()
    outcomes = list(queue.run(jobs(*"123")))
    assert sorted((one.key, one.node) for one in outcomes) == [("1", "b"), ("2", "b"), ("3", "b")]
    assert "a is left out: the machine is gone" in lines


def test_jobs_that_only_a_lost_machine_may_do_are_named() -> None:
    def script(worker: str, work: Any) -> list[Event]:
        return [WorkerLost(worker, "gone", True)] if worker == "a-0" else done(worker, work)

    placing = AnyNode({"1": {"a"}, "2": {"a"}})
    queue, _, _ = queued(script, "a-0", "b-0", placing=placing)
    queue.gather()
    outcomes = {one.key: one for one in queue.run(jobs(*"123"))}
    assert outcomes["3"].result == "3 done"
    for key in "12":
        assert str(outcomes[key].result) == "no machine that has it is left"


def test_a_job_waits_for_the_machine_that_may_do_it() -> None:
    placing = AnyNode({"1": {"b"}})
    queue, _, _ = queued(done, "a-0", "b-0", placing=placing)
    queue.gather()
    assert {one.key: one.node for one in queue.run(jobs(*"12"))} == {"1": "b", "2": "a"}


def test_an_unfit_machine_gets_no_more_jobs() -> None:
    def script(worker: str, work: Any) -> list[Event]:
        full = NodeUnfit("No space left on device")
        return [JobEnded(worker, full)] if worker == "a-0" else done(worker, work)

    queue, workers, lines = queued(script, "a-0", "b-0")
    queue.gather()
    outcomes = list(queue.run(jobs(*"1234")))
    assert {(one.key, one.result) for one in outcomes} == {(n, f"{n} done") for n in "1234"}
    assert workers.dropped == ["a-0"] and [w for w, _ in workers.started].count("a-0") == 1
    assert lines == ["a is left out: No space left on device"]


def test_without_any_worker_it_ends_with_the_reason_of_the_last() -> None:
    queue, _, lines = queued(
        lambda worker, work: [JobEnded(worker, NodeUnfit("full"))], "a-0", "b-0"
    )
    queue.gather()
    with pytest.raises(KvarnError, match="no worker is left: b is left out: full"):
        list(queue.run(jobs(*"12")))
    assert lines == ["a is left out: full"]


def test_a_machine_that_comes_later_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(worker: str, work: Any) -> list[Event]:
        if worker == "a-0":
            return [WorkerLost(worker, "gone", True), *coming("b-0")]
        return done(worker, work)

    queue, _, lines = queued(script, "a-0")
    assert [one.node for one in queue.run(jobs("1"))] == ["b"]
    assert lines[-1] == "a is left out: gone; waiting for another machine"
    queue, _, _ = queued(lambda worker, work: [WorkerLost(worker, "gone", True)], "a-0")
    queue.gather()
    monkeypatch.setattr(module, "START_SECONDS", -1.0)
    with pytest.raises(KvarnError, match="no machine is left, and none has come in"):
        list(queue.run(jobs("1")))


def test_workers_that_do_not_start_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [WorkerStarting("a-0", "a"), *coming("b-0")]
    lines: list[str] = []
    workers = Scripted(events, done)
    queue = Queue(workers, AnyNode(), lines.append)
    monkeypatch.setattr(module, "START_SECONDS", 0.01)
    queue.gather()
    assert queue.nodes == {"b"} and workers.dropped == ["a-0"]
    assert lines == ["a is left out: its worker has not started in 0 s"]


def test_workers_that_tell_what_does_not_fit_are_left_out() -> None:
    events: list[Event] = [WorkerStarting("a-0", "a"), WorkerReady("a-0", "other"), *coming("b-0")]
    lines: list[str] = []
    queue = Queue(Scripted(events, done), AnyNode(refused="other"), lines.append)
    with pytest.raises(KvarnError, match="no worker is left: a is left out: it does not fit"):
        queue.gather()
    events = [WorkerStarting("b-0", "b"), *events[:2], WorkerReady("b-0", None)]
    queue = Queue(Scripted(events, done), AnyNode(refused="other"), lines.append)
    queue.gather()
    assert (queue.nodes, lines) == ({"b"}, ["a is left out: it does not fit"])
