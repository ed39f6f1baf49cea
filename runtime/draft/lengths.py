"""Chooses how many tokens a model drafts, by how often it was right and what passes have taken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from .pace import ALLOWANCE, CREDIT, MEMORY
from .pass_times import PassTimes, usual_cost

PRIOR_TRIES, PRIOR_RATE = 8.0, 0.7
"""Guesses that count as made before the first, and the share of right ones among them."""
CONFIDENCES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Probabilities between which the guesses of a model are counted together."""
WORTHWHILE = 1.05
"""A draft that is expected to bring less than this, in tokens per second, is not made."""
MOST_CREDIT = 32.0
"""Decoded tokens: with twice as many as `Pace` allows, drafts go on over long stretches of a text
that is hard to guess, in one that is mostly easy."""
TRIAL = 4
"""Tokens of a draft that is made to see whether drafts pay by now."""
FIRST_WAIT, LONGEST_WAIT = 32, 1024
"""Tokens generated before such a draft: twice as many after each, until drafts pay."""
CERTAIN = 0.95
"""Share of right guesses with which a draft must pay to be tried again, by what passes usually
take: seconds that were measured while the machine was busy would otherwise decide for ever."""


class Lengths:
    """Learns what drafts bring and cost.

    A draft of n tokens gives E = Σ_{i=0…n} Π_{j≤i} a_j tokens in n d + T(n + 1) seconds, where d is
    a pass of the draft and T of the model that verifies. The n with the most tokens per second is
    taken. Until both are measured, d / T(1) is `ratio`. a_j is the share of guesses that were right
    of those made with such a probability, and of all guesses where the j-th is not made yet.

    Passes of the draft whose guesses are not worth verifying take time, too. They are paid, as all,
    from a credit of decoded tokens, which drafts that pay fill: without it none is begun.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self.drafting, self.verifying = PassTimes(), PassTimes()
        self._all = Share(PRIOR_TRIES, PRIOR_RATE)
        edges = (0.0, *CONFIDENCES, 1.0)
        self._shares = [Share(PRIOR_TRIES, (a + b) / 2) for a, b in pairwise(edges)]
        self._idle, self._wait = 0, FIRST_WAIT
        self._credit = CREDIT

    @property
    def rate(self) -> float:
        """Expected share of right guesses."""
        return self._all.rate

    def rate_of(self, probability: float) -> float:
        """Expected share of right guesses among those to which the draft gives so much."""
        return self._shares[bisect_right(CONFIDENCES, probability)].rate

    def learn(
        self, drafted: Sequence[int], probabilities: Sequence[float], tokens: Sequence[int]
    ) -> None:
        """Compare a draft with the tokens that came in its place, up to the first wrong one.

        probabilities: of all guesses that were made, those after the draft among them.
        """
        profit, n_guesses = 0.0, len(probabilities)
        if n_guesses:
            profit = len(tokens) - self._price(n_guesses, len(drafted))
        credit = self._credit + ALLOWANCE * len(tokens) + profit
        self._credit = min(max(0.0, credit), MOST_CREDIT)
        for guess, probability, token in zip(drafted, probabilities, tokens):
            for share in (self._all, self._shares[bisect_right(CONFIDENCES, probability)]):
                share.count(guess == token)
            if guess != token:
                break
        self._idle = 0 if drafted else self._idle + len(tokens)

    def next(self, longest: int) -> tuple[int, int]:
        """The fewest and the most tokens to draft now, if they are guessed."""
        if self.best(longest):
            if self._credit >= MOST_CREDIT:  # drafts have paid, not a few guesses by luck
                self._wait = FIRST_WAIT
            can_pay = self._credit >= self._price(1, 0) - 1
            return 0, longest if can_pay else 0
        if self._idle < self._wait:
            return 0, 0
        n = min(TRIAL, _best(longest, (), CERTAIN, self._ratio, usual_cost))
        if n:
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        return n, n

    def best(self, longest: int, rates: Sequence[float] = ()) -> int:
        """Tokens that it pays to draft, the guesses with these rates among them: they are made, and
        it may still pay to verify fewer."""
        return _best(longest, rates, self.rate, *self._times())

    def _price(self, n_guesses: int, n_drafted: int) -> float:
        """Decoded tokens in whose time so many are guessed and a draft is verified."""
        drafting, verifying = self._times()
        return (n_guesses * drafting + verifying(n_drafted + 1)) / verifying(1)

    def _times(self) -> tuple[float, Callable[[int], float]]:
        """What a pass of the draft takes, and one that verifies so many tokens."""
        if self.drafting.are_known and self.verifying.are_known:
            return self.drafting.of(1), self.verifying.of
        return self._ratio, usual_cost


class Share:
    """The recent share of right guesses, which begins as if `tries` were made before."""

    def __init__(self, tries: float, rate: float) -> None:
        self._tries, self._hits = tries, tries * rate

    @property
    def rate(self) -> float:
        return self._hits / self._tries

    def count(self, is_right: bool) -> None:
        self._tries = self._tries * MEMORY + 1
        self._hits = self._hits * MEMORY + is_right


def _best(
    longest: int,
    made: Sequence[float],
    rate: float,
    drafting: float,
    times: Callable[[int], float],
) -> int:
    expected = right = 1.0
    best, length = WORTHWHILE / (len(made) * drafting + times(1)), 0
    for n in range(1, longest + 1):
        right *= made[n - 1] if n <= len(made) else rate
        expected += right
        speed = expected / (max(n, len(made)) * drafting + times(n + 1))
        if speed > best:
            best, length = speed, n
    return length
