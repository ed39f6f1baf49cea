"""A context as a model reads it: ids, room for questions, and its packs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.attend.reads import probed
from ...runtime.packs import build_pack
from ...runtime.stats import Stats
from ...runtime.store import Disk
from ..tasks import Question
from .errors import EvalError
from .fitting import fit
from .folder import ContextFolder
from .scoring import most_tokens

if TYPE_CHECKING:
    from ...runtime.context import Progress
    from ...runtime.model import Model
    from .arms import Arm
    from .plan import Asked, Cell, Plan

BREAK = "\n"
"""Separates a context from a question, and ends an answer."""


@dataclass(frozen=True)
class Read:
    """A context and its questions in a model's tokens.

    folder: of its packs. n_ctx: room for the context, the longest question and the longest answer.
    """

    ids: list[int]
    questions: list[Question]
    question_ids: list[list[int]]
    most_tokens: list[int]
    folder: Path
    kinds: tuple[str, str]
    asked: Asked

    @property
    def n_ctx(self) -> int:
        after = [len(ids) + n for ids, n in zip(self.question_ids, self.most_tokens)]
        return len(self.ids) + max(after)

    def pack(self, model: Model, arm: Arm) -> Path:
        """The pack of the context, read as the arm says."""
        return self.folder / arm.pack_name(model)

    def build(self, model: Model, arm: Arm, progress: Progress | None = None) -> list[str]:
        """Read the context into its pack; continues where an interrupted run stopped. Returns what
        a probe of the prefill method has measured, in lines."""
        stats: list[Stats] = []
        build_pack(
            model, Disk(self.pack(model, arm), *self.kinds), self.ids, self.n_ctx, arm.reading,
            progress, lambda context: stats.append(context.stats),
        )  # fmt: skip
        return [str(one) for one in probed(stats[0].prompt_layers)]


def read_for(model: Model, folder: ContextFolder, plan: Plan, cell: Cell, number: int) -> Read:
    """Context `number` of a cell, generated unless the folder holds it."""
    tokenizer = model.tokenizer

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, bos=tokenizer.add_bos)

    text, questions = folder.sample(
        lambda: fit(
            lambda n_chars: cell.make(plan, number, n_chars),
            lambda context: len(encode(context)),
            cell.length,
            f"task {cell.task}",
        )
    )
    if not questions:
        raise EvalError(
            f"task {cell.task} has no question about {cell.length:,} tokens: use a larger --length"
        )
    return Read(
        encode(text),
        questions,
        [tokenizer.encode(BREAK + question.text, bos=False) for question in questions],
        [most_tokens(tokenizer, question) for question in questions],
        folder.path,
        plan.kinds,
        cell.asked,
    )
