"""The plan: what is measured with which command, and what the papers claim about it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvarn.system.errors import KvarnError
from kvarn.system.reading import MOST_TEXT, read_file

ROOM = Path(__file__).parent
PLAN = ROOM / "plan.json"
ANSWERS, LAYERS, LOST, SPEED = "answers", "layers", "lost", "speed"
STUDIES = {kind: f"lab.results.{kind}" for kind in (LAYERS, LOST, SPEED)}
FIRST = 2
"""Contexts of a first look."""


class PlanError(KvarnError):
    """plan.json does not say what can be measured."""


@dataclass(frozen=True)
class Arm:
    """One way of answering, as `kvarn eval` names it in its answers: "topk:index=flat 1%"."""

    method: str = "full"
    budget: str = ""
    keep: str = ""
    keep_budget: str = ""
    prefill: str = ""

    def __str__(self) -> str:
        words = [self.method, self.budget]
        words += ["keep", self.keep, self.keep_budget] if self.keep else []
        words += ["prefill", self.prefill] if self.prefill else []
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, as a bound on a measured contrast.

    The contrast is Σ factor · arm over `contrast`, of `measure` ("score", "read", "error", …) in
    the cells of `tasks` and `lengths` (all of the section, where empty). says, where: what the
    paper tells, in which table or figure. at_least, at_most: the bounds; None: none. exact: the arm
    with the best choice of as many tokens, which tells why a claim fails, after "SECTION: " where
    another section has it; "": none.
    """

    says: str
    where: str
    contrast: Mapping[str, float]
    at_least: float | None = None
    at_most: float | None = None
    measure: str = "score"
    tasks: tuple[str, ...] = ()
    length: int = 0
    exact: str = ""

    def exact_in(self, section: str) -> tuple[str, str]:
        """The section that has the arm `exact`, and the arm; section: the claim's own."""
        other, _, arm = self.exact.rpartition(": ")
        return other or section, arm


@dataclass(frozen=True)
class Section:
    """One table: a call of `kvarn eval`, or a study of attention or speed (`STUDIES`).

    name: of its data. paper, title, about: for the reader. kind: "answers" or one of `STUDIES`.
    arms: the first is what the others are compared with. options: added to the command. late:
    measured only when everything else is. axis: what the plot has on its axis, "read", "kept",
    "length" or "".
    """

    name: str
    paper: str
    title: str
    about: str
    model: str
    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    contexts: int
    questions: int
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...] = ()
    kind: str = ANSWERS
    asked: str = "apart"
    seed: int = 0
    options: tuple[str, ...] = ()
    late: bool = False
    axis: str = ""

    @property
    def data(self) -> Path:
        """Where what was measured is kept."""
        return ROOM / "data" / f"{self.name}.json"

    def steps(self) -> tuple[int, ...]:
        """Numbers of contexts after which there is a table: a first look, then all."""
        return (FIRST, self.contexts) if self.contexts > FIRST else (self.contexts,)


PROCESSES = 2
"""Of the machine that the estimate is for, each on a core of its own."""
STEPS = {"apart": 12, "decoded": 19, "inside": 12}
"""Decoded tokens that take as long as reading a question and answering it."""
SPEED_ROUNDS = 3
"""Times that a study of speed takes each arm."""
TAIL = 512
"""Tokens that are read again before a question inside a prompt, at most."""
SPARSE_SAVES = 8
"""How many times less what a token's depth costs takes in a sparse prefill."""


@dataclass(frozen=True)
class Rates:
    """Seconds of one thread, for the estimate: reading S tokens takes S · (read_token +
    read_depth · S / 2), a decoded token step + step_depth · S, opening a context with another
    method S · index_token, a study by layers of one context `study`. Measured on a Zen 4."""

    read_token: float
    read_depth: float
    step: float
    step_depth: float
    index_token: float
    study: float


@dataclass(frozen=True)
class Model:
    """A model: its file in the repository, its own rates, and how it came to be."""

    file: str
    rates: Rates


@dataclass(frozen=True)
class Results:
    """The whole plan. texts: the names of the books in the folder of texts that are hidden in."""

    models: Mapping[str, Model]
    texts: tuple[str, ...]
    sections: tuple[Section, ...] = field(default_factory=tuple)

    def command(self, section: Section, n_contexts: int = 0) -> list[str]:
        """The arguments of Python that measure a section, with TEXT for the folder of texts."""
        file = self.models[section.model].file
        texts = [f"TEXT/{name}" for name in self.texts]
        contexts = n_contexts or section.contexts
        words = ["-m", STUDIES[section.kind]] if section.kind in STUDIES else ["-m", "lab", "eval"]
        words += ["--model" if section.kind in STUDIES else "-m", file]
        words += ["--task", ",".join(section.tasks)]
        words += ["--length", ",".join(map(str, section.lengths))]
        if section.kind == ANSWERS:
            words += ["--question", section.asked]
        words += ["--contexts", str(contexts), "--questions", str(section.questions)]
        words += ["--seed", str(section.seed), *section.options]
        if section.kind == ANSWERS:
            words += _methods(section)
        return [*words, "--text", *texts]

    def seconds(self, section: Section) -> float:
        """About how long a section takes on two cores like those that `rates` are of."""
        rates = self.models[section.model].rates
        if any(arm.prefill == "sparse" for arm in section.arms):
            rates = replace(rates, read_depth=rates.read_depth / SPARSE_SAVES)
        evicting = sum(bool(arm.keep) for arm in section.arms)
        choosing = len(section.arms) - evicting
        total = 0.0
        for length in section.lengths:
            reading = length * (rates.read_token + rates.read_depth * length / 2)
            if section.kind == LAYERS:
                total += reading + rates.study
                continue
            if section.kind == LOST:
                total += reading * (1 + len(section.arms))
                continue
            if section.kind == SPEED:
                total += reading * (1 + SPEED_ROUNDS * len(section.arms))
                continue
            step = rates.step + rates.step_depth * length
            asking = section.questions * STEPS[section.asked] * step
            again = TAIL * (rates.read_token + rates.read_depth * length)
            inside = section.asked == "inside"
            total += reading + choosing * (asking + length * rates.index_token)
            total += evicting * (reading + asking + inside * section.questions * again)
        return total * section.contexts * len(section.tasks) / PROCESSES


def _methods(section: Section) -> list[str]:
    """The arms as lists of `kvarn eval`: it combines all of them, so they are checked to be all."""
    methods = _unique(arm.method for arm in section.arms)
    budgets = _unique(arm.budget for arm in section.arms if arm.budget)
    keeps = _unique(arm.keep or "all" for arm in section.arms)
    keep_budgets = _unique(arm.keep_budget for arm in section.arms if arm.keep_budget)
    words = ["--method", ",".join(methods)]
    words += ["--budget", ",".join(budgets)] if budgets else []
    if keeps != ["all"]:
        words += ["--keep", ",".join(keeps)]
        words += ["--keep-budget", ",".join(keep_budgets)] if keep_budgets else []
    prefills = _unique(arm.prefill or "exact" for arm in section.arms)
    words += ["--prefill", ",".join(prefills)] if prefills != ["exact"] else []
    return words


def _unique(words: Any) -> list[str]:
    return list(dict.fromkeys(words))


def arms_of(entry: Mapping[str, Any]) -> tuple[Arm, ...]:
    """All combinations, in the order of `kvarn eval`: ways of reading prompts, keeps with their
    budgets, then methods with theirs. A method that reads all and one that names its budget take
    none."""
    prefills = ["" if name == "exact" else name for name in entry.get("prefill", ["exact"])]
    keeps = [
        ("" if keep == "all" else keep, share)
        for keep in entry.get("keep", ["all"])
        for share in _budgets(keep, ("all",), entry.get("keep_budget", ["20%"]))
    ]
    methods = [
        (method, budget)
        for method in entry.get("method", ["full"])
        for budget in _budgets(method, ("full", "magicpig"), entry.get("budget", [""]))
    ]
    return tuple(
        Arm(method, budget, keep, share, prefill)
        for prefill in prefills
        for keep, share in keeps
        for method, budget in methods
    )


def _budgets(name: str, without: Sequence[str], budgets: Sequence[str]) -> Sequence[str]:
    """The budgets of a method; none where it takes none or names its own."""
    return [""] if name.partition(":")[0] in without or ":budget=" in name else budgets


def read_plan(path: Path = PLAN) -> Results:
    """The plan in a file. Raises `PlanError` where there is none, and where a claim names an arm
    that is not measured."""
    if not path.exists():
        raise PlanError(f"there is no plan {path}: name another with --plan")
    raw = json.loads(read_file(path, MOST_TEXT))
    models = {
        name: Model(model["file"], Rates(**model["rates"])) for name, model in raw["models"].items()
    }
    sections = tuple(_section(entry) for entry in raw["sections"])
    names = [section.name for section in sections]
    if len(set(names)) < len(names):
        raise PlanError(f"{path}: two sections have the same name")
    known = {section.name: {str(arm) for arm in section.arms} for section in sections}
    for section in sections:
        for claim in section.claims:
            wanted = [(section.name, arm) for arm in claim.contrast]
            for name, arm in [*wanted, *([claim.exact_in(section.name)] if claim.exact else [])]:
                if arm not in known.get(name, ()):
                    raise PlanError(
                        f"{path}: a claim of {section.name} is about {arm!r}, expected one of "
                        f"{', '.join(sorted(known.get(name, ())))}"
                    )
    return Results(models, tuple(raw["texts"]), sections)


def _section(entry: Mapping[str, Any]) -> Section:
    plain = dict(entry)
    arms = arms_of(plain.pop("arms"))
    claims = tuple(
        Claim(**{**claim, "tasks": tuple(claim.get("tasks", ()))}) for claim in plain.pop("claims")
    )
    for name in ("tasks", "lengths", "options"):
        plain[name] = tuple(plain.get(name, ()))
    return Section(arms=arms, claims=claims, **plain)


def hours(seconds: float) -> str:
    """1.2 h, or minutes where it is less than one."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{math.ceil(seconds / 60)} min"
