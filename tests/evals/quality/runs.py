"""Evaluations to be tested: their arms, what they tell, what they leave."""

from pathlib import Path

from kvarn.evals.quality import Arm, Plan, Row, evaluate
from kvarn.evals.quality.folder import Answer, ContextFolder
from kvarn.evals.tasks import Plain
from kvarn.runtime.attend import Full, Hash, TopK
from kvarn.runtime.bench import Observer
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import SparsePrefill

FULL = Arm()
HASH = Arm("hash", "20", attend=Hash(budget=20, sink=4, window=16, probe=2))
FLAT = Arm("topk:index=flat", "20", attend=TopK(budget=20, sink=4, window=16, index="flat"))
STREAMING = Arm("full", "", "streaming", "40%", Full(), KEEPS["streaming"]("40%"))
SPARSE = Arm(prefill="sparse:k=16", reading=SparsePrefill(k=16, from_=1024))
PLAN = Plan(("needle", "kv"), (600,), (FULL, HASH), Plain(), "plain", 2, 2, asked="decoded")


class Steps(Observer):
    """Counts what a run tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[int, int]] = []
        self.read = 0

    def say(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, what: str):
        if what == "evaluating":
            return lambda done, total: self.steps.append((done, total))
        return lambda done, total: setattr(self, "read", self.read + 1)


def run(model: Model, wanted: Plan, work: Path) -> tuple[list[Row], Steps]:
    observer = Steps()
    return list(evaluate(model, wanted, work, observer)), observer


def answers_in(folder: Path) -> list[Answer]:
    return ContextFolder(folder).answers()
