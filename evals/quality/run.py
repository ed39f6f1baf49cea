"""An evaluation: every arm answers every question about every context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.bench import Observer
from ...runtime.context.planning.plan import training_notice
from ...runtime.memory import human_bytes
from .asking import open_asker
from .chat import Chat
from .folder import Answer, ContextFolder
from .plan import Cell
from .reading import TokenSample, tokenize_sample
from .room import check_disk, check_memory
from .rows import ALL, Row, rows_of

if TYPE_CHECKING:
    from ...runtime.model import Model
    from .arms import Arm
    from .plan import Plan, QuestionMode
    from .rows import Contexts

    Answered = Callable[[Cell, int, Sequence[Answer]], None]
    """Called with the cell, the number of the context and one arm's answers about it."""

_SUFFIXES: dict[QuestionMode, str] = {"decoded": "", "apart": "-apart", "inside": "-inside"}
"""Tell the keys of answers apart by how their questions were read."""
_EVICTED = "-evicted"
"""Instead of "-apart", where tokens were evicted before the question was read."""


def evaluate(
    model: Model,
    plan: Plan,
    work: Path,
    observer: Observer | None = None,
    answered: Answered = lambda cell, number, answers: None,
    shared: bool = False,
) -> Iterator[Row]:
    """The rows of each task and length in turn; then, of several tasks, those over all tasks.

    work: the folder of contexts. Contexts and answers of earlier runs, interrupted or with other
    methods, are used again. answered: called with each context's answers, arm by arm. shared: other
    processes take a part of the contexts (`answer_free`): waits for these when no other is left.
    Answers and rows are the same whichever process gives them. Raises `EvalError` or `StoreError`
    where the disk or memory has no room for the longest context.
    """
    run = _Run(model, plan, work, observer or Observer())
    run.check_room()
    if line := training_notice(model, "--length", max(plan.lengths)):
        run.observer.say(line)
    if shared:
        run.answer_free()
    of_length: dict[int, list[Contexts]] = {length: [] for length in plan.lengths}
    for cell in plan.cells():
        contexts = []
        for number in range(plan.n_contexts):
            contexts.append(run.context(cell, number))
            for answers in contexts[-1]:
                answered(cell, number, answers)
        of_length[cell.length].append(contexts)
        yield from rows_of(cell, plan.arms, contexts)
    if len(plan.tasks) > 1:
        for length, tasks in of_length.items():
            cell = Cell(ALL, length, plan.asked, plan.chat)
            yield from rows_of(cell, plan.arms, *tasks)
    if run.pack_bytes:
        run.observer.say(f"{human_bytes(run.pack_bytes)} of KV caches stay in {work}")


def answer_free(model: Model, plan: Plan, work: Path, say: Callable[[str], None]) -> None:
    """Answer about the contexts of an evaluation on which no other process works.

    say: called with results of probes of the prefill, and with methods' notices.
    """
    _Run(model, plan, work, _MessageObserver(say)).answer_free()


class _MessageObserver(Observer):
    """Passes messages on, and drops progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def say(self, line: str) -> None:
        self._say(line)


class _Run:
    """The state of one evaluation."""

    def __init__(self, model: Model, plan: Plan, work: Path, observer: Observer) -> None:
        self.model, self.plan, self.work, self.observer = model, plan, work, observer
        self.chat = Chat.of(model) if plan.chat else None
        self.pack_bytes = 0
        self._notices: set[str] = set()
        self._progress = observer.progress("evaluating")
        self._all = sum(c.length for c in plan.cells()) * plan.n_contexts * len(plan.arms)
        self._done = 0
        self._keys = [arm.key(model) + self._suffix(arm) for arm in plan.arms]
        self._taken: dict[tuple[Cell, int], list[list[Answer]]] = {}

    def _suffix(self, arm: Arm) -> str:
        if self.plan.asked == "apart" and not arm.keeps_all:
            return _EVICTED
        return _SUFFIXES[self.plan.asked]

    def check_room(self) -> None:
        """Raise `KvarnError` where there is no room for the longest context."""
        check_memory(self.model, self.plan)
        names = {arm.pack_name(self.model) for arm in self.plan.arms if arm.keeps_all}
        cells = [cell for cell in self.plan.cells() if cell.length == max(self.plan.lengths)]
        numbers = range(self.plan.n_contexts)
        folders = (self._folder(cell, number).path for cell in cells for number in numbers)
        packs = (folder / name for folder in folders for name in names)
        check_disk(self.model, self.plan, self.work, packs)

    def answer_free(self) -> None:
        """Answer about all contexts on which no other process works."""
        for cell in self.plan.cells():
            for number in range(self.plan.n_contexts):
                folder = self._folder(cell, number)
                with folder.lock(wait=False) as is_free:
                    if is_free:
                        self._taken[cell, number] = self._answers(folder, cell, number)

    def context(self, cell: Cell, number: int) -> list[list[Answer]]:
        """Each arm's answers about one context."""
        if (cell, number) not in self._taken:
            folder = self._folder(cell, number)
            with folder.lock():
                self._taken[cell, number] = self._answers(folder, cell, number)
        return self._taken.pop((cell, number))

    def _folder(self, cell: Cell, number: int) -> ContextFolder:
        facts = self.chat.facts if self.chat else []
        return ContextFolder(self.work / cell.key(self.plan, number, self.model, facts))

    def _answers(self, folder: ContextFolder, cell: Cell, number: int) -> list[list[Answer]]:
        """All arms' answers about a context; asks those that the folder does not hold."""
        earlier, n = folder.answers(), folder.n_questions
        read: TokenSample | None = None
        answers = []
        for arm, key in zip(self.plan.arms, self._keys):
            known = {a.question: a for a in earlier if a.key == key}
            if not n or len(known) < n:
                read = read or tokenize_sample(
                    self.model, folder, self.plan, cell, number, self.chat
                )
                n = len(read.questions)
                self._ask(folder, read, arm, key, known)
            # Another spelling of an arm, such as a default that it names, has the same key.
            answers.append([replace(known[i], arm=str(arm)) for i in range(n)])
            self._advance(cell.length)
        if self.plan.keep_packs:
            self.pack_bytes += folder.pack_bytes
        else:
            for pack, names in folder.remove_packs().items():
                self.observer.say(f"{pack} is not kvarn's alone, it keeps {', '.join(names)}")
        return answers

    def _ask(
        self,
        folder: ContextFolder,
        read: TokenSample,
        arm: Arm,
        key: str,
        answers: dict[int, Answer],
    ) -> None:
        """Ask one arm the questions that `answers` does not hold, and add its answers there."""
        reading = self.observer.progress(f"reading {len(read.ids):,} tokens")
        if arm.keeps_all:
            for line in read.build(self.model, arm, reading):
                self.observer.say(f"{folder.path.name}, {arm}: {line}")
        with open_asker(self.model, read, arm, reading) as asker:
            context = asker.context
            # The place of K and V is given with their bytes, which differ between contexts.
            where = [context.where.partition(":")[0]] if context.where else []
            known = context.where, training_notice(self.model, "--ctx", context.n_ctx)
            self._tell([*where, *(line for line in context.notices if line not in known)])
            for i in range(len(read.questions)):
                if i not in answers:
                    answers[i] = asker.ask(key, i)
                    folder.add(answers[i])

    def _tell(self, notices: Sequence[str]) -> None:
        """Show the notices of a method, each once in the run."""
        for line in notices:
            if line not in self._notices:
                self._notices.add(line)
                self.observer.say(line)

    def _advance(self, length: int) -> None:
        self._done += length
        if self._progress is not None:
            self._progress(self._done, self._all)
