"""Workers as actors of Ray: each stays on its machine, where Ray starts it again if it dies."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from .. import __version__
from ..system.errors import KvarnError
from ..system.text import one_line
from .jobs import (
    Event,
    JobEnded,
    JobProgress,
    WorkerDied,
    WorkerLost,
    WorkerReady,
    Workers,
    WorkerStarting,
)
from .worker import Make, Report, Worker

_UPDATE_SECONDS = 2.0
"""Between two queries of the cluster for its machines."""


class RayWorkers(Workers):
    """`per_node` workers on each machine of the cluster, also on those that join later.

    ray: the module, connected. threads: of each worker; None: the cores that Ray knows of, shared
    among the workers of a machine.
    """

    def __init__(self, ray: Any, make: Make, per_node: int = 1, threads: int | None = None) -> None:
        self._ray, self._make, self._per_node, self._threads = ray, make, per_node, threads
        self._actors: dict[str, Any] = {}
        self._node_ids: dict[str, str] = {}  # of workers
        self._names: dict[str, str] = {}  # of nodes that have had workers, by their ids
        self._pending: dict[Any, tuple[str, bool]] = {}  # reference → worker, and whether a hello
        self._events: list[Event] = []
        self._updated_at = 0.0
        self._update_nodes()
        if not self._actors:
            raise KvarnError(f"no machine has the CPUs for a worker: it takes {threads or 1}")

    def wait(self, seconds: float) -> list[Event]:
        if time.monotonic() - self._updated_at > _UPDATE_SECONDS:
            self._update_nodes()
        if not self._events:
            self._listen(seconds)
        events, self._events = self._events, []
        return events

    def start(self, worker: str, work: Any) -> None:
        self._pending[self._actors[worker].begin.remote(work)] = worker, False

    def restart(self, worker: str) -> None:
        self._ray.kill(self._actors[worker], no_restart=False)

    def drop(self, worker: str) -> None:
        self._forget(worker)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            self._ray.kill(actor)

    def _listen(self, seconds: float) -> None:
        if not self._pending:
            time.sleep(seconds)
            return
        refs = list(self._pending)
        ready, _ = self._ray.wait(refs, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            if ref not in self._pending:  # its worker was lost with another answer
                continue
            worker, is_hello = self._pending.pop(ref)
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self._handle_failure(worker, is_hello, error)
            else:
                self._handle_answer(worker, is_hello, answer)

    def _handle_answer(self, worker: str, is_hello: bool, answer: Any) -> None:
        if is_hello:
            if isinstance(answer, KvarnError):
                self.drop(worker)
                self._events.append(WorkerLost(worker, str(answer)))
            else:
                self._events.append(WorkerReady(worker, answer))
            return
        report: Report = answer
        if not report.knows:
            self._events.append(WorkerDied(worker))
            self._greet(worker)
        elif report.ended:
            self._events.append(JobEnded(worker, report.result))
        else:
            self._events.append(JobProgress(worker, report.done, report.total))
            self._pending[self._actors[worker].poll.remote()] = worker, False

    def _handle_failure(self, worker: str, is_hello: bool, error: Exception) -> None:
        """The worker's process or machine is gone."""
        if is_hello:
            self.drop(worker)
            lost = self._node_ids[worker] not in self._live_nodes()
            self._events.append(WorkerLost(worker, _reason(error), lost))
        else:
            self._events.append(WorkerDied(worker))
            self._greet(worker)

    def _greet(self, worker: str) -> None:
        """Ask a worker that is starting; the answer comes when it has."""
        hello = self._actors[worker].hello.options(max_task_retries=-1)
        self._pending[hello.remote(__version__)] = worker, True

    def _live_nodes(self) -> dict[str, dict[str, Any]]:
        """The machines of the cluster by their ids."""
        return {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}

    def _update_nodes(self) -> None:
        """Start workers on new machines; leave those of lost ones."""
        alive = self._live_nodes()
        for worker in [w for w in self._actors if self._node_ids[w] not in alive]:
            self.drop(worker)
            self._events.append(WorkerLost(worker, "the machine is gone", True))
        for node_id in alive.keys() - self._names.keys():
            cpus = int(alive[node_id]["Resources"].get("CPU", 0))
            if cpus >= (self._threads or 1):  # heads are often started without CPUs for workers
                self._names[node_id] = self._name_of(alive[node_id])
                for i in range(self._per_node):
                    self._start_worker(node_id, f"{node_id}-{i}", max(1, cpus // self._per_node))
        self._updated_at = time.monotonic()

    def _name_of(self, node: dict[str, Any]) -> str:
        """Its address; where it has more nodes than one, as in tests, with the id's beginning."""
        name = str(node["NodeManagerAddress"])
        named = Counter(str(other["NodeManagerAddress"]) for other in self._ray.nodes())
        return name if named[name] == 1 else f"{name}-{node['NodeID'][:6]}"

    def _start_worker(self, node_id: str, worker: str, share: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = self._ray.remote(Worker).options(
            max_restarts=-1,
            # A job that its worker died of is for the queue: a retry would wait for this worker.
            max_task_retries=0,
            num_cpus=self._threads or share,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        self._actors[worker] = actor.remote(self._make, self._threads, share)
        self._node_ids[worker] = node_id
        self._events.append(WorkerStarting(worker, self._names[node_id]))
        self._greet(worker)

    def _forget(self, worker: str) -> None:
        self._pending = {ref: call for ref, call in self._pending.items() if call[0] != worker}


def _reason(error: Exception) -> str:
    """One line of an error of Ray's, whose texts have many."""
    text = str(error)
    if "No module named 'kvarn'" in text:
        return "kvarn is not installed in the Python of its Ray"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__, 300)
