"""What studies of attention have in common: their options, contexts that are shared and kept."""

from __future__ import annotations

import argparse
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kvarn.evals.quality import Arm, EvalError, Plan
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.quality.oracle import Oracle
from kvarn.evals.quality.plan import Cell
from kvarn.evals.quality.reading import TokenSample, tokenize_sample
from kvarn.evals.tasks import Prose
from kvarn.jit.machine import physical_cores
from kvarn.runtime.home import mode_in
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.system.children import run_helpers
from kvarn.system.errors import KvarnError
from kvarn.system.files import write_file
from kvarn.system.reading import MOST_TEXT, read_file, read_text
from kvarn.system.terminal import say

from .plan import ROOM

FILLER = "layers"
"""Names the folders of the contexts, which all studies share."""


@dataclass(frozen=True)
class Contexts(ABC):
    """The contexts of a study, each kept in its folder with the figures of it.

    name: of the files of figures; sources: the modules that they follow from.
    """

    model: Model
    plan: Plan
    work: Path

    name: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def figures(self, read: TokenSample, cell: Cell, number: int) -> Iterable[dict[str, Any]]:
        """Measure one context: the cells of `data`."""

    def cells(self, shared: bool = False) -> Iterator[dict[str, Any]]:
        """The figures of every context. shared: see `evals.quality.evaluate`."""
        if shared:
            self.answer_free()
        for cell, number in self._all():
            folder = self._folder(cell, number)
            with folder.lock():
                yield from self._kept(folder, cell, number)

    def answer_free(self) -> None:
        """Study the contexts that no other process is at work on."""
        for cell, number in self._all():
            folder = self._folder(cell, number)
            with folder.lock(wait=False) as is_free:
                if is_free:
                    self._kept(folder, cell, number)

    def _all(self) -> list[tuple[Cell, int]]:
        return [(cell, i) for cell in self.plan.cells() for i in range(self.plan.n_contexts)]

    def _folder(self, cell: Cell, number: int) -> ContextFolder:
        return ContextFolder(self.work / cell.key(self.plan, number, self.model))

    def _kept(self, folder: ContextFolder, cell: Cell, number: int) -> list[dict[str, Any]]:
        """The figures of one context; measured unless its folder holds them."""
        path = folder.path / f"{self.name}-{self._key()}.json"
        if not path.exists():
            read = tokenize_sample(self.model, folder, self.plan, cell, number)
            rows = list(self.figures(read, cell, number))
            write_file(path, json.dumps(rows).encode(), mode_in(folder.path))
        found: list[dict[str, Any]] = json.loads(read_file(path, MOST_TEXT))
        return found

    def _key(self) -> str:
        """A digest of the study's own options, and of how it measures."""
        options = [value for name, value in vars(self).items() if name not in _COMMON]
        state = hashlib.blake2b(repr(options).encode(), digest_size=6)
        for source in self.sources:
            state.update((ROOM / source).read_bytes())
        return state.hexdigest()


_COMMON = ("model", "plan", "work")


def keeping_arm(text: str, budget: str) -> Arm:
    """The arm of a keep method as a text such as nacl:random=none names it.

    Raises `EvalError` for one that there is not, or an option that it has not.
    """
    name, *options = text.split(":")
    methods: dict[str, Any] = {**KEEPS, Oracle.name: Oracle}
    if name not in methods:
        raise EvalError(f"unknown keep method {name!r}, expected one of {', '.join(methods)}")
    method, fields = methods[name], {}
    for option in options:
        field, _, value = option.partition("=")
        known = method.options()
        if field not in known:
            raise EvalError(f"{text}: unknown option {field!r}, expected one of {', '.join(known)}")
        fields[field] = known[field].kind(value)
    return Arm("full", "", text, budget, keeping=method(budget, **fields))


def parser(about: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all studies have."""
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--task", required=True, help="names with commas")
    p.add_argument("--length", required=True, help="numbers with commas")
    p.add_argument("--contexts", type=int, default=10)
    p.add_argument("--questions", type=int, default=4)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--text", type=Path, nargs="+", required=True)
    p.add_argument("--work", type=Path, default=Path("build/results"))
    p.add_argument("--answers", type=Path, required=True, help="JSON lines to write")
    p.add_argument("--processes", type=int, default=1, help="that share the contexts")
    return p


def studied(o: argparse.Namespace) -> tuple[Model, Plan]:
    """The model and the plan that options name."""
    texts = [read_text(path).decode() for path in o.text]
    plan = Plan(
        tuple(o.task.split(",")), tuple(map(int, o.length.split(","))), (Arm(),), Prose(texts),
        FILLER, o.contexts, o.questions, o.seed,
    )  # fmt: skip
    return load(o.model, threads=max(1, physical_cores() // o.processes)), plan


def study(o: argparse.Namespace, make: Callable[[argparse.Namespace], Contexts]) -> None:
    """Measure the contexts that `make` gives for the options, and write `o.answers`.

    What is wrong with the options or a text ends the program with one line.
    """
    try:
        contexts = make(o)
        with run_helpers(o.processes - 1, _help, (o, make), say):
            lines = [json.dumps(cell) + "\n" for cell in contexts.cells(shared=o.processes > 1)]
        write_file(o.answers, "".join(lines).encode())
    except (KvarnError, OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"kvarn: {error}") from None


def _help(about: tuple[argparse.Namespace, Any], say: Callable[[str], None]) -> None:
    o, make = about
    make(o).answer_free()
