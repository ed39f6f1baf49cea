"""The plan of an evaluation: tasks, lengths, arms."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...runtime.methods import called
from ...system.errors import KvarnError, WrongUsage
from ..tasks import ALL_TASKS, Filler, Sample

if TYPE_CHECKING:
    from ...runtime.model import Model
    from .arms import Arm


BREAK = "\n"
"""Separates a context from a question, and ends an answer where there is no end of a turn."""


class EvalError(KvarnError):
    """An evaluation cannot be run with these tasks, lengths, methods or folder of contexts."""


class WrongPlan(EvalError, WrongUsage):
    """The same, whatever model and folder are."""


QuestionMode = Literal["apart", "decoded", "inside"]
"""How to read questions: after the context, as `kvarn run` reads one about a pack ("apart"); token
by token, like generated ones ("decoded"); or at the end of the prompt, as in papers on eviction
("inside")."""


@dataclass(frozen=True)
class Plan:
    """Tasks × lengths × arms, over the same contexts and questions for all arms.

    lengths: tokens of the contexts, without their questions. n_contexts: contexts of each task and
    length. n_questions: the most questions about a context; a task may have fewer. filler_name:
    part of the key of results. keep_packs: keep the KV caches for a later run. asked: see
    `QuestionMode`. chat: whether to ask through the model's chat template, see `Chat`.

    Raises `EvalError` or `PrefillError` for what cannot be evaluated.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    arms: tuple[Arm, ...]
    filler: Filler
    filler_name: str
    n_contexts: int = 20
    n_questions: int = 100
    seed: int = 0
    kinds: tuple[str, str] = ("f16", "f16")
    keep_packs: bool = True
    asked: QuestionMode = "apart"
    chat: bool = False

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in ALL_TASKS:
                raise WrongPlan(f"unknown task {task!r}, expected some of {', '.join(ALL_TASKS)}")
        names = [*self.tasks, *map(str, self.lengths), *map(str, self.arms)]
        for name in names:
            if names.count(name) > 1:
                raise WrongPlan(f"{name} is asked for twice")
        for arm in self.arms:
            if arm.is_oracle and self.asked != "inside":
                raise WrongPlan(
                    f"{arm}: the oracle knows the question before it evicts; ask with "
                    "--question inside"
                )
            if not arm.keeps_all and arm.attend.needs_all_tokens:
                raise WrongPlan(
                    f"{arm}: what evicts cannot be combined with {called(arm.attend)} attention, "
                    "which needs all tokens in order"
                )
            for length in self.lengths:
                arm.reading.check(arm.attend, arm.keeping, length)

    def cells(self) -> list[Cell]:
        """Each task at each length, in the order of the table."""
        return [
            Cell(task, length, self.asked, self.chat)
            for task in self.tasks
            for length in self.lengths
        ]


@dataclass(frozen=True)
class Cell:
    """One task at one length."""

    task: str
    length: int
    asked: QuestionMode = "apart"
    chat: bool = False

    def make(self, plan: Plan, number: int, n_chars: int) -> Sample:
        """Context `number` with about so many characters."""
        rng = random.Random(f"{plan.seed} {self.task} {self.length} {number}")
        return ALL_TASKS[self.task](rng, n_chars, plan.n_questions, plan.filler)

    def key(self, plan: Plan, number: int, model: Model, chat: Sequence[str] = ()) -> str:
        """A name that differs wherever the context or its KV cache could differ: by settings,
        model, source of the generators and `Chat.facts`."""
        facts = [
            model.fingerprint, plan.kinds, plan.seed, plan.n_questions, plan.filler_name,
            self.task, self.length, number, _generators(), *chat,
        ]  # fmt: skip
        digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=6).hexdigest()
        return f"{self.task}-{self.length}-{number:02}-{digest}"


def _generators() -> str:
    """A digest of the source of all generators."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted((Path(__file__).parent.parent / "tasks").glob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()
