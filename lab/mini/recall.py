"""How much of a context a model recalls: the share of exact replies, task by task."""

from __future__ import annotations

import random
from collections.abc import Iterable
from concurrent.futures import Executor

import torch
from tokenizers import Tokenizer

from kvarn.evals.tasks import TASKS, Filler

from .model import Mini
from .texts.data import Ids
from .texts.rows import REPLY, Rows

SEED = 1_000_003
"""Apart from every seed of a training."""


class Recall:
    """Fixed samples of every task over held-out filler, the replies read with the context before
    them ("teacher-forced": one pass answers all questions of a row)."""

    def __init__(self, tokenizer: Tokenizer, text: Ids, filler: Filler, pool: Executor) -> None:
        self.rows = Rows(tokenizer, text, filler, SEED)
        self.pool = pool

    def measure(
        self, model: Mini, length: int, n_rows: int, tasks: Iterable[str] = TASKS
    ) -> dict[str, float]:
        """Share of replies in which every token is the model's most likely one, per task."""
        jobs = [(task, i) for task in tasks for i in range(n_rows)]
        found = self.pool.map(lambda job: self._row(model, length, *job), jobs)
        right = {task: [0, 0] for task, _ in jobs}
        for (task, _), (hits, asked) in zip(jobs, found, strict=True):
            right[task][0] += hits
            right[task][1] += asked
        return {task: round(hits / max(1, asked), 3) for task, (hits, asked) in right.items()}

    def _row(self, model: Mini, length: int, task: str, i: int) -> tuple[int, int]:
        """Exact replies and replies of a row of about `length` tokens."""
        rng = random.Random(f"{SEED} {task} {length} {i}")
        n_tokens = int(0.8 * length)
        n_questions = max(8, n_tokens // rng.choice((32, 64, 128, 512)))
        sample = self.rows.sample(rng, TASKS[task], n_tokens, n_questions)
        ids, spans = [self.rows.bos], []
        for part, weight in self.rows.recall(sample, rng):
            if weight == REPLY:
                spans.append((len(ids), len(ids) + len(part)))
            ids += part
            if len(ids) > 1.2 * length:
                break
        with torch.no_grad():
            hidden = model.hidden(torch.tensor([ids]))[0]
            hits = 0
            for first, last in spans:
                logits = hidden[first - 1 : last - 1] @ model.token_embd.weight.T
                hits += int((logits.argmax(-1) == torch.tensor(ids[first:last])).all())
        return hits, len(spans)
