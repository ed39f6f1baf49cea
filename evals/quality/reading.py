"""A context as a model reads it: of the right length, its ids, room for questions, its packs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.attend.reads import probed
from ...runtime.context.reading.prompt import prompt_ids
from ...runtime.packs.pack import build_pack
from ...runtime.stats import Stats
from ...runtime.store import Disk
from ..tasks import Question, Sample
from .folder import ContextFolder
from .plan import BREAK, EvalError

if TYPE_CHECKING:
    from ...runtime.context import Progress
    from ...runtime.model import Model
    from ...runtime.tokenizer import Tokenizer
    from .arms import Arm
    from .chat import Chat
    from .plan import Cell, Plan, QuestionMode

CHARS_PER_TOKEN = 4.0
"""The first guess of the search: typical of English."""
SLACK = 0.02
ATTEMPTS = 24
MARGIN = 8
"""Tokens added to the expected reply, for other wordings of it."""
CHAT_MARGIN = 32
"""The same for instruct models, which answer in sentences and numbered lists."""


@dataclass(frozen=True)
class TokenSample:
    """A context and its questions in a model's tokens.

    folder: of its packs. stop: strings at which an answer ends. n_ctx: room for the context, the
    longest question and the longest answer.
    """

    ids: list[int]
    questions: list[Question]
    question_ids: list[list[int]]
    most_tokens: list[int]
    folder: Path
    kinds: tuple[str, str]
    asked: QuestionMode
    stop: tuple[str, ...] = (BREAK,)

    @property
    def n_ctx(self) -> int:
        after = [len(ids) + n for ids, n in zip(self.question_ids, self.most_tokens)]
        return len(self.ids) + max(after)

    def pack(self, model: Model, arm: Arm) -> Path:
        """The pack of the context, read as the arm says."""
        return self.folder / arm.pack_name(model)

    def build(self, model: Model, arm: Arm, progress: Progress | None = None) -> list[str]:
        """Read the context into its pack; continue where an interrupted run stopped. Returns lines
        with the results of a probe of the prefill method."""
        stats: list[Stats] = []
        build_pack(
            model, Disk(self.pack(model, arm), *self.kinds), self.ids, self.n_ctx, arm.reading,
            progress, lambda context: stats.append(context.stats),
        )  # fmt: skip
        return [str(result) for result in probed(stats[0].prompt_layers)]


def tokenize_sample(
    model: Model,
    folder: ContextFolder,
    plan: Plan,
    cell: Cell,
    number: int,
    chat: Chat | None = None,
) -> TokenSample:
    """Context `number` of a cell, generated unless the folder holds it; asked through `chat`."""
    tokenizer = model.tokenizer

    def before(text: str) -> list[int]:
        return prompt_ids(tokenizer, chat.context(cell.task, text) if chat else text)

    def after(text: str) -> list[int]:
        follows = chat.question(text) if chat else BREAK + text
        return prompt_ids(tokenizer, follows, begins=False)

    text, questions = folder.sample(
        lambda: fit(
            lambda n_chars: cell.make(plan, number, n_chars),
            lambda context: len(before(context)),
            cell.length,
            f"task {cell.task}",
        )
    )
    if not questions:
        raise EvalError(
            f"task {cell.task} has no question about {cell.length:,} tokens: use a larger --length"
        )
    if chat:
        chat.check(cell.task, text, questions[0].text)
    return TokenSample(
        before(text),
        questions,
        [after(question.text) for question in questions],
        [most_tokens(tokenizer, question, bool(chat)) for question in questions],
        folder.path,
        plan.kinds,
        cell.asked,
        () if chat else (BREAK,),
    )


def most_tokens(tokenizer: Tokenizer, question: Question, chat: bool = False) -> int:
    """Most tokens of an answer: 1.5 times those of the expected reply, and a margin."""
    reply = tokenizer.encode(question.reply, bos=False)
    return len(reply) * 3 // 2 + (CHAT_MARGIN if chat else MARGIN)


def fit(
    make: Callable[[int], Sample], n_tokens: Callable[[str], int], length: int, subject: str
) -> Sample:
    """A sample of `make(characters)` whose context has 98% to 100% of `length` tokens, or as many
    as whole sentences allow.

    The first guesses are proportional. Then it bisects between a number of characters that fits
    and one that does not. Raises `EvalError` where the shortest context is too long.
    """
    best: tuple[int, Sample] | None = None
    fits, exceeds = 0, 0
    n_chars = int(CHARS_PER_TOKEN * length)
    for _ in range(ATTEMPTS):
        sample = make(n_chars)
        n = n_tokens(sample.context)
        if n > length:
            exceeds = n_chars
        else:
            fits = max(fits, n_chars)
            if best is None or n > best[0]:
                best = n, sample
            if n >= (1 - SLACK) * length:
                break
        guess = int(n_chars * (1 - SLACK / 2) * length / max(1, n))
        if exceeds and not fits < guess < exceeds:
            guess = (fits + exceeds) // 2
        if guess in (fits, exceeds, n_chars):
            break
        n_chars = guess
    if best is None:
        raise EvalError(f"{subject} does not fit in {length:,} tokens: use a larger --length")
    return best[1]
