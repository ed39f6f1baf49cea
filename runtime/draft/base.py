"""What every draft is: options that are shared, and the guesses of one generation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING

from ...system.errors import KvarnError, WrongUsage

if TYPE_CHECKING:
    from ..context import Context
    from ..sampling.state import SamplerState


MOST_TOKENS = 31
"""Of a draft: with the token before it, as many as `Transformer` reads at once (its `FEW`)."""
LIMITS = {"max_tokens": (1, MOST_TOKENS), "min_match": (1, 64), "min_probability": (0, 1)}
"""Option of a draft → its least and its most."""
NGRAM = "ngram"
"""What the word `draft` says where no model is to guess."""
OPTIONS: Mapping[str, str] = {
    "draft_max": "max_tokens",
    "draft_min_match": "min_match",
    "draft_p_min": "min_probability",
}
"""Word beside `draft` → option of a draft."""
WORDS = ("draft", *OPTIONS)


class DraftError(KvarnError):
    """An option of drafting cannot be used, or a model cannot draft for another."""


class BadDraftOption(DraftError, WrongUsage):
    """An option of drafting is out of its range, or has no effect."""


class Draft(ABC):
    """The options of a way to guess coming tokens; any number of generations may share them.

    What generates several answers at a time gives each a draft: the first or a `sibling`.
    """

    def sibling(self) -> Draft:
        """One with these options, for a generation at the same time."""
        return self

    def n_shared(self, tokens: Sequence[int]) -> int:
        """With how many of `tokens` those begin that it has read."""
        return 0

    def read_some(self, context: Context, n_tokens: int) -> bool:
        """Read at most so many of the context's tokens, before `start`, which reads the others;
        whether none is left."""
        return True

    def stop_at(self, flag: int) -> None:  # noqa: B027 (most compute nothing)
        """Stop what computes once the int64 at the address `flag` is not 0; see
        `Context.stop_at`."""

    def prepare(self, context: Context) -> None:  # noqa: B027 (most need nothing)
        """Take the memory that guessing for this context needs, before its prompt is read. Raises
        `DraftError` where it cannot guess for its model."""

    @abstractmethod
    def start(self, context: Context, sampler: SamplerState) -> Drafter:
        """The state of a new generation, which goes on after the tokens of `context`; `sampler`
        draws its tokens from the logits of the model that verifies."""


class Drafter(ABC):
    """Guesses of one generation."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """Up to `n` ids that may follow `tokens`; none where a guess would not pay.

        tokens: all so far, which begin with those of the previous call. The new ones show which
        guesses were right.
        """

    def verified(self, n_tokens: int, seconds: float) -> None:  # noqa: B027 (most do not ask)
        """Told before `propose`: what the pass over the last proposal and the token before it took,
        `n_tokens` in all."""


def checked_option(option: str, value: float, given: str = "") -> None:
    """Raises `BadDraftOption` for an option out of its `LIMITS`. given: option and value as a user
    gave them."""
    least, most = LIMITS[option]
    kind = Real if option == "min_probability" else Integral
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        given = f"{given}:" if given else f"drafting: {option} is {value!r:.50},"
        raise BadDraftOption(f"{given} expected {least} to {most}")
