"""What a training step reads: rows of running text, and recall tasks with the loss on answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from tokenizers import Tokenizer

from kvarn.evals.tasks import SCATTERED, TASKS, Filler, Sample, Task
from kvarn.ops.arrays import F32, I64

from .data import BOS, N_CONTROL, Ids, token_id

SINGLE = {
    "kv": 0.35,
    "needle": 0.30,
    "homes": 0.12,
    "two-hop": 0.06,
    "multiquery": 0.05,
    "chains": 0.04,
    "copy": 0.04,
    "frequent": 0.02,
    "multivalue": 0.02,
}
"""How often each task is drawn at first: mostly tasks that need one look at one fact."""
MIXED = {
    "kv": 0.18,
    "chains": 0.17,
    "multiquery": 0.11,
    "needle": 0.10,
    "records": 0.10,
    "frequent": 0.10,
    "two-hop": 0.08,
    "multivalue": 0.06,
    "homes": 0.05,
    "copy": 0.05,
}
"""How often later, when the model finds single facts: more tasks that need several looks."""
LEAST_FILLER = (0.2, 0.5, 1.0, 4.0)
"""Filler per character of scattered facts, drawn from these: sparse facts teach little."""
QUESTION_TOKENS = 18
"""About how many a question with its reply has."""
TEXT, QUESTION, REPLY = 1.0, 0.1, 4.0
"""Weights in the loss: running text (and filler), a question, its reply. Facts weigh 0: they cannot
be predicted."""
MOST_TEXT = 4096
"""About the most targets of running text in a row: logits take memory. Of more, some are drawn."""
CHARS_PER_TOKEN = 3.5
"""A first guess, corrected where a context comes out too long."""

Ids64 = I64
Weights = F32


@dataclass(frozen=True)
class Stage:
    """A stretch of the training: its share of the tokens, the rows' length and their number.

    repeats, recall: shares of rows that are random tokens over and over, and of those with a task,
    which `tasks` tells; the others are running text. Random tokens are what teaches a model to look
    back at all, for nearly every target of theirs is an answer (Olsson et al. 2022, In-context
    learning and induction heads).
    """

    share: float
    length: int
    batch: int
    repeats: float
    recall: float
    tasks: Mapping[str, float]


@dataclass(frozen=True)
class Batch:
    """ids int64 [B, T + 1]; weights float32 [B, T] of the targets ids[:, 1:]."""

    ids: Ids64
    weights: Weights


class Rows:
    """The batches of a run: a function of (seed, step) alone, so that a resumed run reads on
    exactly where it stopped."""

    def __init__(self, tokenizer: Tokenizer, text: Ids, filler: Filler, seed: int) -> None:
        self.tokenizer, self.text, self.filler, self.seed = tokenizer, text, filler, seed
        self.bos = token_id(tokenizer, BOS)
        newline = self._encode("\n")[0]
        self.starts = np.flatnonzero(text[:-1] == newline) + 1

    def batch(self, step: int, stage: Stage) -> Batch:
        """The rows of a step counted from 0."""
        rows = [
            self._row(random.Random(f"{self.seed} {step} {i}"), stage) for i in range(stage.batch)
        ]
        return Batch(np.stack([ids for ids, _ in rows]), np.stack([w for _, w in rows]))

    def _row(self, rng: random.Random, stage: Stage) -> tuple[Ids64, Weights]:
        length, kind = stage.length, rng.random()
        ids, weights = [self.bos], [0.0]
        if kind < stage.repeats:
            first = self._random_tokens(rng, rng.randint(8, length // 2))
            again = length // len(first)
            ids += first * (again + 1)
            weights += [0.0] * len(first) + [TEXT] * (len(first) * again)
        elif kind < stage.repeats + stage.recall:
            name = rng.choices(list(stage.tasks), list(stage.tasks.values()))[0]
            share = rng.choice((0.4, 0.55, 0.7)) if length < 1024 else rng.choice((0.8, 0.9))
            room = int((1 - share) * length / QUESTION_TOKENS)
            n_questions = max(4, room) * rng.choice((1, 1, 4))
            task = TASKS[name]
            if name in SCATTERED:
                task = partial(SCATTERED[name], least_filler=rng.choice(LEAST_FILLER))
            sample = self.sample(rng, task, int(share * length), n_questions)
            for part, weight in self.recall(sample, rng):
                ids += part
                weights += [weight] * len(part)
        if len(ids) <= length:
            part = self._running_text(rng, length + 1 - len(ids))
            ids += part
            weights += [TEXT] * len(part)
        cut = np.array(weights[1 : length + 1], np.float32)
        return np.array(ids[: length + 1], np.int64), self._thinned(rng, cut)

    def _random_tokens(self, rng: random.Random, n: int) -> list[int]:
        """n ids, each as likely as any other that is not a control token."""
        return [rng.randrange(N_CONTROL, self.tokenizer.get_vocab_size()) for _ in range(n)]

    def sample(self, rng: random.Random, task: Task, n_tokens: int, n_questions: int) -> Sample:
        """A task's sample whose context has at most n_tokens."""
        n_chars, state = n_tokens * CHARS_PER_TOKEN, rng.getstate()
        while True:
            rng.setstate(state)
            sample = task(rng, int(n_chars), n_questions, self.filler)
            held = len(self._encode(sample.context))
            if held <= n_tokens or n_chars < 200:
                return sample
            n_chars *= 0.98 * n_tokens / held

    def recall(self, sample: Sample, rng: random.Random) -> Iterator[tuple[list[int], float]]:
        """The ids of a context and its questions with replies, with the weight of each stretch."""
        for part in sample.parts:
            yield self._encode(part.text), TEXT if part.is_foreseeable else 0.0
        for question in rng.sample(sample.questions, len(sample.questions)):
            yield self._encode("\n" + question.text), QUESTION
            yield self._encode(question.reply), REPLY
        yield self._encode("\n"), QUESTION

    def _running_text(self, rng: random.Random, n: int) -> list[int]:
        """n ids from a paragraph's start on."""
        last = int(np.searchsorted(self.starts, len(self.text) - n))
        start = int(self.starts[rng.randrange(last)])
        return [int(i) for i in self.text[start : start + n]]

    def _thinned(self, rng: random.Random, weights: Weights) -> Weights:
        """Keep about MOST_TEXT targets of running text, drawn at random, and all others."""
        is_text = weights == TEXT
        kept = MOST_TEXT / max(1, int(is_text.sum()))
        if kept < 1:
            drawn = np.random.default_rng(rng.getrandbits(64)).random(len(weights))
            weights[is_text & (drawn > kept)] = 0
        return weights

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
