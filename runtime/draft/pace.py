"""Chooses the length of a draft: weighs the expected gain in tokens against the pass's cost.

The unit of cost is one decoded token; costs are measured while drafts are verified (`pass_times`).
"""

from __future__ import annotations

from .pass_times import PassTimes

# Failed drafts may cost 2% of the tokens in all, and 4 tokens to begin with. Text that never
# repeats loses no more than that.
ALLOWANCE = 0.02
CREDIT = 4.0
MOST_CREDIT = 16.0
# A pass that is expected to win less than this is not worth the risk.
WORTHWHILE = 1.1
# Guesses that count as made before the first, and the share of right ones among them, for matches
# of 1, 2 to 3, 4 to 7, and 8 or more times the shortest length.
PRIOR_TRIES = 8.0
PRIOR_RATES = (0.4, 0.6, 0.8, 0.95)
# Each new guess takes 1/64 of the weight from the older ones: about the last hundred count.
MEMORY = 1 - 1 / 64


class Pace:
    """Learns how often guesses are right and chooses the length of drafts by it.

    r(m) is the recent share of right guesses after a match of m tokens. A draft of n tokens after a
    match of m is expected to give E = Σ_{i=0…n} Π_{j<i} r(m + j) tokens. The n with the highest
    E / cost(n + 1) is taken if that is worthwhile and the credit covers a failure.
    """

    def __init__(self, min_match: int) -> None:
        self._min_match = min_match
        self._tries = [PRIOR_TRIES] * len(PRIOR_RATES)
        self._hits = [PRIOR_TRIES * rate for rate in PRIOR_RATES]
        self._credit = CREDIT
        self._times = PassTimes()
        self._costs = self._times.costs()

    def record(self, n_tokens: int, seconds: float) -> None:
        """Count what a pass over `n_tokens` tokens took."""
        if self._times.add(n_tokens, seconds):
            self._costs = self._times.costs()

    def length(self, match: int, longest: int) -> int:
        """Tokens to draft after a match of `match` tokens: 0 to `longest`."""
        expected = right = 1.0
        best, length = WORTHWHILE, 0
        for n in range(1, longest + 1):
            right *= self.rate(match + n - 1)
            expected += right
            if n >= 4 and (n + 1) % 4 and n < longest:
                continue  # in a long pass, the last of four tokens costs nothing more
            price = self._costs[n]
            if price - 1 > self._credit:
                break
            if expected / price > best:
                best, length = expected / price, n
        return length

    def rate(self, match: int) -> float:
        """Expected share of right guesses after a match of `match` tokens."""
        kind = self._kind(match)
        return self._hits[kind] / self._tries[kind]

    def learn(self, match: int, right: bool) -> None:
        """Count one guess."""
        kind = self._kind(match)
        self._tries[kind] = self._tries[kind] * MEMORY + 1
        self._hits[kind] = self._hits[kind] * MEMORY + right

    def settle(self, n_new: int, n_drafted: int) -> None:
        """Settle a pass that read a draft of `n_drafted` tokens and gave `n_new` tokens."""
        profit = n_new - self._costs[n_drafted] if n_drafted else 0.0
        self._credit = min(self._credit + ALLOWANCE * n_new + profit, MOST_CREDIT)

    def _kind(self, match: int) -> int:
        return min((match // self._min_match).bit_length(), len(PRIOR_RATES)) - 1
