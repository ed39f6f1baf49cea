"""What a pass over some tokens takes: measured, and before that as it usually is.

The unit of cost is one decoded token. A pass over T tokens usually costs about

    cost(T) = 1 + 0.45 (T - 1) up to 4 tokens, 1 + 0.45 (4 ⌈T / 4⌉ - 1) beyond

(the 1B shapes of `make peers` on two Zen 3 cores with AVX2, Q4_0: 1.4 for 2 tokens, 2.4 for 4; Q8_0
1.4 and 2.3. Beyond 4, weights are multiplied by 4 tokens at a time, and read once). Two Zen 4 cores
with AVX-512 take 1.06 for 2 to 4 tokens, 1.7 for 8 and 2.8 for 16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from .base import MOST_TOKENS

TOKEN = 0.45  # for each token after the first
RECENT = 8
"""Passes of one size whose shortest counts: what else the machine did lengthens the others."""


def cost(n_tokens: int) -> float:
    """Decoded tokens in whose time `n_tokens` can usually be read in one pass."""
    return 1 + TOKEN * (_size(n_tokens) - 1)


def usual_cost(size: int) -> float:
    """`cost` of a pass that is not measured yet; of up to 4 tokens the least, so that each is
    tried: what they take beside each other differs from one machine to another."""
    return cost(2) if 2 <= size <= 4 else cost(size)


def _size(n_tokens: int) -> int:
    return n_tokens if n_tokens <= 4 else -(-n_tokens // 4) * 4


USUAL_COSTS = tuple(cost(n) for n in range(1, MOST_TOKENS + 2))


class PassTimes:
    """Seconds that passes over some tokens take: measured, or in proportion to measured ones.

    Kernels take up to 4 tokens one by one and then 4 at a time, so passes that take as many steps
    count as one size. The first of each size is left out: it touches memory and code anew.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def add(self, n_tokens: int, seconds: float) -> bool:
        """Count a pass over `n_tokens` tokens; whether passes of its size take another time now."""
        of_size = self._seconds.get(size := _size(n_tokens))
        if of_size is None:
            self._seconds[size] = deque(maxlen=RECENT)
            return False
        before = min(of_size, default=0.0)
        of_size.append(seconds)
        return min(of_size) != before

    @property
    def are_known(self) -> bool:
        """Whether any size is measured."""
        return any(self._seconds.values())

    def costs(self) -> Sequence[float]:
        """The costs of passes over 1, 2, … tokens, as many as a pass may read; `USUAL_COSTS` until
        one token is measured. More tokens never cost less."""
        if not self._seconds.get(1):
            return USUAL_COSTS
        one = self.of(1)
        return list(accumulate((self.of(n) / one for n in range(1, MOST_TOKENS + 2)), max))

    def of(self, n_tokens: int) -> float:
        """Seconds of a pass over `n_tokens` tokens, once any size is measured."""
        size = _size(n_tokens)
        known = (n for n, seconds in self._seconds.items() if seconds)
        nearest = min(known, key=lambda n: abs(n - size))
        seconds = min(self._seconds[nearest])
        return seconds if nearest == size else seconds * usual_cost(size) / cost(nearest)
