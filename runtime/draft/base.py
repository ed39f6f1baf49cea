"""The interface of every way to draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...system.errors import KvarnError


class DraftError(KvarnError):
    """An option of drafting is out of its range."""


class Draft(ABC):
    """The options of a way to guess coming tokens; any number of generations may share them."""

    @abstractmethod
    def start(self) -> Drafter:
        """The state of a new generation."""


class Drafter(ABC):
    """Guesses of one generation."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """Up to `n` ids that may follow `tokens`; none where a guess would not pay.

        tokens: all so far, which begin with those of the previous call. The new ones show which
        guesses were right.
        """
