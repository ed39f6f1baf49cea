"""A question to packs of several machines: they stay where they are, and the question travels.

Each worker looks into the folders of its machine. The words of the question are counted and the
gains computed there, so the packs that answer, and their answers, are those of one machine that has
all packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..system.errors import KvarnError
from .jobs import Job, Placement
from .queue import Queue
from .shelf import NodePack, ShelfFacts, ShelfJob, Wants

if TYPE_CHECKING:
    from ..runtime.context import Progress
    from ..runtime.packs.asking import Answer

_BATCH = 32
"""Packs whose words one job counts."""


class Shelves(Placement):
    """A job goes to a node that has all of its packs. `packs`: by id, with the nodes that have
    them. jobs: their keys → the ids of their packs."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self.packs: dict[str, NodePack] = {}
        self.nodes: dict[str, set[str]] = {}
        self.jobs: dict[str, list[str]] = {}
        self._reported: set[str] = set()
        self._pending: list[str] | None = []  # until it is known that there are packs

    def may_run(self, key: str, node: str, nodes: frozenset[str]) -> bool:
        return all(node in self.nodes[id] for id in self.jobs[key])

    def admit(self, node: str, facts: ShelfFacts) -> None:
        for line in facts.lines:
            if line not in self._reported:  # machines that share a folder say the same of it
                self._reported.add(line)
                self._report(f"{node}: {line}")
        for pack in facts.packs:
            self.packs.setdefault(pack.id, pack)
            self.nodes.setdefault(pack.id, set()).add(node)

    def _report(self, line: str) -> None:
        if self._pending is None:
            self._notice(line)
        else:
            self._pending.append(line)

    def record_death(self, key: str, node: str, done: int) -> None:
        """Nothing was written, so any of them may do it."""

    def pack_ids(self) -> list[str]:
        """The ids of all packs, by path. Raises `KvarnError` without any, and where another model
        made one of them."""
        ids = sorted(self.packs, key=lambda id: (self.packs[id].path, id))
        pending, self._pending = self._pending or [], None
        if not ids:
            raise KvarnError(": ".join(["no machine has finished packs there", *pending[:1]]))
        for line in pending:
            self._notice(line)
        first = self.packs[ids[0]].head
        for id in ids[1:]:
            other = self.packs[id].head
            if (other.fingerprint, other.adapters) != (first.fingerprint, first.adapters):
                raise KvarnError(
                    f"{self.label(ids[0])} was made by {first.model} and {self.label(id)} by "
                    f"{other.model}, or with other adapters: a question is compared after packs of "
                    "one model"
                )
        return ids

    def label(self, id: str) -> str:
        """A pack's path, with its machines."""
        return f"{self.packs[id].path} on {', '.join(sorted(self.nodes[id]))}"


@dataclass(frozen=True)
class ClusterAnswer:
    """What a pack answered. node: the machine on which it did."""

    pack: NodePack
    node: str
    gain: float
    answer: Answer


class ClusterAsker:
    """One question to all packs of the machines. Packs that no machine can read any more are named
    by `notice`, and left out."""

    def __init__(self, queue: Queue, shelves: Shelves, notice: Callable[[str], None]) -> None:
        self._queue, self._shelves, self._notice = queue, shelves, notice

    def gains(self, progress: Progress = lambda done, total: None) -> dict[str, float]:
        """The gains of the candidates, by the ids of packs, the largest first, see `rank_packs`.

        Raises `KvarnError` where no pack can be asked, and for what is wrong with a pack.
        """
        from ..runtime.packs.ranking import CANDIDATES

        self._queue.gather()
        ids = self._shelves.pack_ids()
        if len(ids) > CANDIDATES:
            ids = self._candidates(ids)
        gains: dict[str, float] = {}
        for [id], _, gain in self._run("gain", [[id] for id in ids]):
            gains[id] = gain
            progress(len(gains), len(ids))
        order = [id for id in ids if id in gains]
        return {id: gains[id] for id in sorted(order, key=lambda id: -gains[id])}

    def answers(self, gains: Mapping[str, float], best: int) -> list[ClusterAnswer]:
        """What the first packs of `gains` answer, the best first. Where none can be read any more,
        the next one answers."""
        answers: dict[str, ClusterAnswer] = {}
        left = list(gains)
        while left and len(answers) < best:
            chosen, left = left[: best - len(answers)], left[best - len(answers) :]
            for [id], node, answer in self._run("answer", [[id] for id in chosen]):
                pack = self._shelves.packs[id]
                answers[id] = ClusterAnswer(pack, node, gains[id], answer)
        return [answers[id] for id in gains if id in answers]

    def _candidates(self, ids: list[str]) -> list[str]:
        from ..runtime.packs.ranking import candidates, scores_of

        alike: dict[frozenset[str], list[str]] = {}
        for id in ids:
            alike.setdefault(frozenset(self._shelves.nodes[id]), []).append(id)
        batches = [
            some[i : i + _BATCH] for some in alike.values() for i in range(0, len(some), _BATCH)
        ]
        rows: dict[str, tuple[Any, float]] = {}
        for batch, _, (counts, lengths) in self._run("counts", batches):
            rows |= {id: (counts[i], lengths[i]) for i, id in enumerate(batch)}
        ids = [id for id in ids if id in rows]
        if not ids:
            return []
        counts = np.stack([rows[id][0] for id in ids])
        lengths = np.array([rows[id][1] for id in ids])
        return [ids[i] for i in candidates(scores_of(counts, lengths))]

    def _run(self, wants: Wants, batches: list[list[str]]) -> Iterator[tuple[list[str], str, Any]]:
        """Packs, the node that was asked, and its result."""
        jobs = self._shelves.jobs
        jobs.clear()
        jobs.update({" ".join(ids): ids for ids in batches})

        for outcome in self._queue.run(
            Job(key, partial(ShelfJob, wants, ids)) for key, ids in jobs.items()
        ):
            ids, result = jobs[outcome.key], outcome.result
            if not isinstance(result, KvarnError):
                yield ids, outcome.node, result
            elif outcome.node:
                raise KvarnError(f"{outcome.node}: {result}") from result
            else:
                for id in ids:
                    self._notice(f"{self._shelves.label(id)} is not asked: {result}")
