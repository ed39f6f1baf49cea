"""Chooses the length of a draft: weighs the expected gain in tokens against the pass's cost.

The unit of cost is one decoded token. A pass over T tokens costs about

    cost(T) = 1 + 0.45 (T - 1) up to 4 tokens, 1 + 0.45 (4 ⌈T / 4⌉ - 1) beyond

(the 1B shapes of `make peers` on two Zen 3 cores with AVX2, Q4_0: 1.4 for 2 tokens, 2.4 for 4; Q8_0
1.4 and 2.3. Beyond 4, weights are multiplied by 4 tokens at a time, and read once; what that takes
is not measured). These constants decide, not the clock: so a run can be repeated.
"""

from __future__ import annotations

TOKEN = 0.45  # for each token after the first
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


def cost(n_tokens: int) -> float:
    """Decoded tokens in whose time `n_tokens` can be read in one pass."""
    n = n_tokens if n_tokens <= 4 else -(-n_tokens // 4) * 4
    return 1 + TOKEN * (n - 1)


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

    def length(self, match: int, longest: int) -> int:
        """Tokens to draft after a match of `match` tokens: 0 to `longest`."""
        expected = right = 1.0
        best, length = WORTHWHILE, 0
        for n in range(1, longest + 1):
            right *= self.rate(match + n - 1)
            expected += right
            if right < TOKEN:
                break  # from here on a token is expected to win less than it costs
            if n >= 4 and (n + 1) % 4 and n < longest:
                continue  # in a long pass, the last of four tokens costs nothing more
            price = cost(n + 1)
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

    def pay(self, n_new: int, n_drafted: int) -> None:
        """Settle a pass that read a draft of `n_drafted` tokens and gave `n_new` tokens."""
        profit = n_new - cost(n_drafted + 1) if n_drafted else 0.0
        self._credit = min(self._credit + ALLOWANCE * n_new + profit, MOST_CREDIT)

    def _kind(self, match: int) -> int:
        return min((match // self._min_match).bit_length(), len(PRIOR_RATES)) - 1
