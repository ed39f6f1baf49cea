"""A scheduler in this process, with a request that reads a long prompt beside others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import kvarn
from kvarn.runtime.context.batch import Batch
from kvarn.runtime.draft import Draft
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model
from kvarn.runtime.serving.drafts import Drafts
from kvarn.runtime.serving.flags import Flags
from kvarn.runtime.serving.library import Library
from kvarn.runtime.serving.prompt import Reading
from kvarn.runtime.serving.protocol import Done, Generate, Pieces, Refused
from kvarn.runtime.serving.requests.preparing import RequestPreparer
from kvarn.runtime.serving.scheduler import Scheduler
from kvarn.runtime.serving.tasks import AnswerTask

N_CTX, N_PROMPT = 1500, 700
READER = 9
"""The number of the request that reads a long prompt once all others generate."""


@dataclass
class Serving:
    """A scheduler in this process, and what it has said, of each request."""

    model: Model
    folder: Path
    cache_bytes: int = 0
    draft: Draft | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    """How each has ended: its finish, or why it was refused."""
    in_pause: dict[int, int] = field(default_factory=dict)
    """Messages of each that came in a pause, its end among them."""
    waiting: AnswerTask | None = None
    """The reader, before its turn."""
    watch: Callable[[msgspec.Struct], None] = lambda message: None

    def run(self, prompts: Sequence[list[int]], n_new: int, words: Sequence[Any] = ()) -> None:
        """Answer all prompts; the last one, of number `READER`, comes when all others generate."""
        library = Library(self.model, self.folder, self.cache_bytes, lambda line: None)
        batch, preparing = (
            Batch(self.model),
            RequestPreparer(self.model, N_CTX, {}, library.answers),
        )
        self.flags, path = Flags.create()
        self.scheduler = Scheduler(len(prompts), batch, library, self._take)
        drafts = None if self.draft is None else Drafts(self.draft, len(prompts))
        ways = library, self.flags, self._take, lambda *ended: None, drafts
        numbers = [*range(1, len(prompts)), READER]
        tasks = []
        for number, prompt, word in zip(numbers, prompts, words or [{}] * len(prompts)):
            self.tokens[number], self.in_pause[number] = [], 0
            asked = Generate(
                number,
                number,
                prompt,
                6 if number == READER else n_new,
                sampling={"temp": 0.0},
                ignore_eos=True,
                reading=Reading(words=word),
            )
            tasks.append(AnswerTask(preparing.generate(asked), *ways))
        *answers, self.waiting = tasks
        for task in answers:
            self.scheduler.put(task)
        try:
            on_engine(self.scheduler.run)
        finally:
            path.unlink()

    @property
    def reads_in_pause(self) -> bool:
        """Whether the prompt of the reader is paused now."""
        return self.waiting is None and self.model.transformer.pauses.is_on

    def _take(self, message: msgspec.Struct) -> None:
        if not isinstance(message, Pieces | Done | Refused):
            return
        self.in_pause[message.id] += self.reads_in_pause
        if isinstance(message, Pieces):
            self.tokens[message.id] += message.tokens
            if all(self.tokens[n] or n in self.ends for n in self.tokens if n != READER):
                reader, self.waiting = self.waiting, None
                if reader is not None:
                    self.scheduler.put(reader)
        else:
            is_done = isinstance(message, Done)
            self.ends[message.id] = message.finish if is_done else message.message
        self.watch(message)
        if len(self.ends) == len(self.tokens):
            self.scheduler.stop(0.0)


def prompt_of(model: Model, n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, min(250, model.config.n_vocab), n).tolist()


def prompts_of(model: Model, n: int = 3) -> list[list[int]]:
    """Short ones, and a long one at the end."""
    sizes = [*(40 + 13 * i for i in range(n - 1)), N_PROMPT]
    return [prompt_of(model, size, size) for size in sizes]


def alone(model: Model, prompt: list[int], n: int, **options: Any) -> list[int]:
    with model.context(N_CTX, **options) as context:
        return list(context.generate_ids(prompt, n, kvarn.Sampler(temp=0, ignore_eos=True)))
