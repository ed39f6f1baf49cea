"""The guesses of a model that drafts, in one generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...ops.arrays import F32
from ..sampling.candidates import best_token
from ..sampling.errors import SamplingError
from ..stats import Clock
from .base import Drafter
from .lengths import Lengths

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model
    from ..sampling.state import SamplerState

AS_A_DRAFT = 4
"""Tokens up to which a draft reads what was generated as a draft that is right: such a pass is
recorded, and kernels take 4 tokens at a time."""
FEW = 16
"""Tokens up to which reading what was generated counts as a pass of the draft."""


@dataclass
class GuessingContext:
    """What the generations of a draft share: a context, and its options.

    n_vocab: tokens that the model knows. drafter: the one whose tokens the context holds.
    """

    context: Context
    n_vocab: int
    max_tokens: int
    min_probability: float
    drafter: ModelDrafter | None = None

    def can_follow(self, tokens: Sequence[int]) -> bool:
        """Whether there is room for the tokens and one more, and all are tokens of the model."""
        return 0 < len(tokens) < self.context.n_ctx and max(tokens) < self.n_vocab


class ModelDrafter(Drafter):
    """Reads what the other model has read, and goes on as far as that pays.

    sampler: of the generation; model: the one that verifies.
    """

    def __init__(
        self, guessing: GuessingContext, lengths: Lengths, model: Model, sampler: SamplerState
    ) -> None:
        self._guessing, self._context, self.lengths = guessing, guessing.context, lengths
        self._sampler, self._ends = sampler, model.tokenizer.eog_ids
        self._n_logits = model.config.n_vocab
        self._n_vocab = min(self._n_logits, guessing.n_vocab)
        self._drafted: Sequence[int] = ()
        self._probabilities: list[float] = []
        """Of all guesses in the softmax of this model, those after the draft among them."""
        self._n_seen = self._n_read = 0
        """Tokens that were seen, and how many of them the context has read."""
        self._is_lost = False
        """Whether there are tokens that the model does not have: those that pad a vocabulary."""

    def verified(self, n_tokens: int, seconds: float) -> None:
        self.lengths.verifying.add(n_tokens, seconds)

    def read(self, tokens: Sequence[int]) -> None:
        """Read the tokens before the answer, but for those that no draft can follow."""
        self._n_seen = len(tokens)
        self._is_lost = max(tokens, default=0) >= self._n_vocab
        if self._guessing.can_follow(tokens):
            self._catch_up(tokens)

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        new = tokens[self._n_seen :]
        self.lengths.learn(self._drafted, self._probabilities, new)
        self._n_seen, self._drafted, self._probabilities = len(tokens), (), []
        self._is_lost |= max(new, default=0) >= self._n_vocab
        # The last token of a draft is not read.
        longest = min(n, self._guessing.max_tokens, self._context.n_ctx - len(tokens) + 1)
        if longest > 0 and not self._is_lost:
            least, most = self.lengths.next(longest)
            if most:
                self._drafted = self._guesses(tokens, least, most)
        return self._drafted

    def _guesses(self, tokens: Sequence[int], least: int, most: int) -> list[int]:
        """Up to `most` tokens, each drawn by a copy of the sampler after those before it: beyond
        `least`, as long as they pay."""
        guesses, rates = list[int](), list[float]()
        sampler, logits = self._sampler.fork(), self._catch_up(tokens)
        while True:
            token, probability = self._guess(sampler, logits)
            self._probabilities.append(probability)
            if token is None:
                break
            sampler.accept(token)
            if sampler.is_complete:
                break  # as the last token of an answer, it is not read
            rates.append(self.lengths.rate_of(probability))
            n = max(least, self.lengths.best(most, rates))
            if n < len(rates):
                del guesses[n:]
                break
            guesses.append(token)
            if n == len(rates):
                break
            logits = self._read([token])
        return guesses

    def _guess(self, sampler: SamplerState, logits: F32) -> tuple[int | None, float]:
        """The next token and the highest probability; None where the answer ends, or where the
        model is not sure."""
        logits = sized(logits[: self._n_vocab], self._n_logits)
        probability = highest_share(logits)
        if probability < self._guessing.min_probability:
            return None, probability
        try:
            token = sampler.sample(logits)
        except SamplingError:
            return None, probability  # tokens are allowed that the model does not have
        return None if token in self._ends else token, probability

    def _catch_up(self, tokens: Sequence[int]) -> F32:
        """Read what is missing of the tokens; returns the logits after the last one."""
        context, guessing = self._context, self._guessing
        if guessing.drafter is not self:
            n = context.cut_to_shared(tokens)
            guessing.drafter = self
        else:
            held, most = context.tokens, len(tokens) - 1
            n = min(self._n_read, len(held), most)
            while n < min(len(held), most) and held[n] == tokens[n]:
                n += 1
            context.truncate(n)
        self._n_read = len(tokens)
        return self._read(tokens[n:])

    def _read(self, tokens: Sequence[int]) -> F32:
        """Read tokens of any number, and count what that takes where they are few."""
        clock, context, n = Clock(), self._context, len(tokens)
        if 0 < n <= min(AS_A_DRAFT, 1 + context.draft_room):
            logits = context.decode(tokens[0], tokens[1:])
            for token in tokens[1:]:
                logits = context.decode(token)
        else:
            logits = context.prefill(tokens)
        if 0 < n <= FEW:
            self.lengths.drafting.add(n, clock.read()[0])
        return logits


def sized(logits: F32, n: int) -> F32:
    """The logits of a vocabulary of `n` tokens, of those of its first tokens: the others cannot be
    drawn."""
    if len(logits) == n:
        return logits
    return np.concatenate((logits, np.full(n - len(logits), -np.inf, np.float32)))


def highest_share(logits: F32) -> float:
    """The share of the most likely token in the softmax. Raises `NotFinite` for broken logits."""
    best = logits[best_token(logits)]
    return float(1 / np.exp(logits - best).sum())
