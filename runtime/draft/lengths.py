"""Chooses how many tokens a model drafts, by how often it was right and what passes have taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .pace import MEMORY
from .pass_times import PassTimes, usual_cost

PRIOR_TRIES, PRIOR_RATE = 8.0, 0.7
"""Guesses that count as made before the first, and the share of right ones among them."""
WORTHWHILE = 1.05
"""A draft that is expected to bring less than this, in tokens per second, is not made."""
TRIAL = 4
"""Tokens of a draft that is made to see whether drafts pay by now."""
FIRST_WAIT, LONGEST_WAIT = 32, 1024
"""Tokens generated before such a draft: twice as many after each."""
CERTAIN = 0.95
"""Share of right guesses with which a draft must pay to be tried again, by what passes usually
take: seconds that were measured while the machine was busy would otherwise decide for ever."""


class Lengths:
    """Learns what drafts bring and cost.

    With a share a of right guesses, a draft of n tokens gives E = Σ_{i=0…n} aⁱ tokens in
    n d + T(n + 1) seconds, where d is a pass of the draft and T of the model that verifies. The n
    with the most tokens per second is taken. Until both are measured, d / T(1) is `ratio`.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self.drafting, self.verifying = PassTimes(), PassTimes()
        self._tries, self._hits = PRIOR_TRIES, PRIOR_TRIES * PRIOR_RATE
        self._idle, self._wait = 0, FIRST_WAIT

    @property
    def rate(self) -> float:
        """Expected share of right guesses."""
        return self._hits / self._tries

    def learn(self, drafted: Sequence[int], tokens: Sequence[int]) -> None:
        """Compare a draft with the tokens that came in its place, up to the first wrong one."""
        for guess, token in zip(drafted, tokens):
            self._tries = self._tries * MEMORY + 1
            self._hits = self._hits * MEMORY + (guess == token)
            if guess != token:
                break
        self._idle = 0 if drafted else self._idle + len(tokens)

    def next(self, longest: int) -> int:
        """Tokens to draft now: 0 to `longest`."""
        if n := self.best(longest, self.rate):
            self._wait = FIRST_WAIT
            return n
        if self._idle < self._wait:
            return 0
        n = min(TRIAL, self._best(longest, CERTAIN, self._ratio, usual_cost))
        if n:
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        return n

    def best(self, longest: int, rate: float) -> int:
        """Tokens that it pays to draft where this share of guesses is right."""
        if self.drafting.are_known and self.verifying.are_known:
            return self._best(longest, rate, self.drafting.of(1), self.verifying.of)
        return self._best(longest, rate, self._ratio, usual_cost)

    @staticmethod
    def _best(longest: int, rate: float, drafting: float, times: Callable[[int], float]) -> int:
        expected = right = 1.0
        best, length = WORTHWHILE / times(1), 0
        for n in range(1, longest + 1):
            right *= rate
            expected += right
            speed = expected / (n * drafting + times(n + 1))
            if speed > best:
                best, length = speed, n
        return length
