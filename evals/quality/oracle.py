"""keep `oracle`: the tokens that the question attends to most, which no method can know before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ops.arrays import F32, I32
from ...runtime.keep.scored.base import ScoredKeep
from ...runtime.keep.scored.methods import highest_and_newest, pooled

POOLING = 17
"""Eight tokens on either side: no single answer of the tasks is longer."""


@dataclass(frozen=True)
class Oracle(ScoredKeep):
    """The tokens after the first `context` are the question. They stay, and their queries alone
    score the others: by the highest F of the POOLING tokens around one. (The question's queries
    point to the first token of an answer. Queries of the answer would point to the others, but do
    not exist yet. With `snapkv`'s 7 neighbours, kvarn-mini loses the last of five digits.)

    The loss of other evicting methods against this one is the price of not knowing the question;
    its own loss against a full cache is the price of the budget.
    """

    name: ClassVar[str] = "oracle"
    summary: ClassVar[str] = "after the prompt, those that the question at its end attends to most"
    context: int = 0

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        return max(1, n_tokens - self.context)

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        n_slots = scores.shape[1]
        newest = min(budget, self.n_proxies(n_slots, budget))
        others = pooled(scores[:, : n_slots - newest], POOLING)
        return highest_and_newest(others, budget - newest, newest)
