"""Draft `ngram`: the tokens that followed an earlier occurrence of the newest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import MOST_TOKENS, Draft, Drafter, checked_option

if TYPE_CHECKING:
    from ..context import Context
    from ..sampling.state import SamplerState
    from .index import NgramIndex

STEPS = (4, 2, 1)
"""Sizes of the n-grams that are looked up, longest first, in multiples of the shortest."""


@dataclass(frozen=True)
class Ngram(Draft):
    """Prompt look-up: finds the newest tokens earlier in the context and copies what followed.

    max_tokens: the longest draft, up to 31, which a pass reads with the token before it.
    min_match: the shortest n-gram that counts as a match.

    Raises `DraftError` for an option out of its range. Source: Saxena 2023, prompt look-up
    decoding; verification as Leviathan et al. 2023 with a draft that is certain of its tokens.
    """

    max_tokens: int = MOST_TOKENS
    min_match: int = 2

    def __post_init__(self) -> None:
        for name in ("max_tokens", "min_match"):
            checked_option(name, getattr(self, name))

    def start(
        self, context: Context | None = None, sampler: SamplerState | None = None
    ) -> NgramDrafter:
        from .index import NgramIndex  # NumPy: not wanted where options are only parsed

        return NgramDrafter(self, NgramIndex([self.min_match * step for step in STEPS]))


class NgramDrafter(Drafter):
    """Follows the latest of the longest matches; drafts where drafts have paid.

    About 10 µs per token, whatever the length of the context; indexing a prompt of 1M tokens takes
    0.25 s.
    """

    def __init__(self, options: Ngram, index: NgramIndex) -> None:
        from .pace import Pace

        self._options = options
        self._index = index
        self._pace = Pace(options.min_match)
        # The last `_match` tokens equal those before `_place`.
        self._place = self._match = 0
        self._drafted = self._n_seen = 0

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        self._follow(tokens)
        place, match = self._index.find(tokens)
        if match >= self._match:
            self._place, self._match = place, match
        if not self._match:
            return ()
        self._drafted = self._pace.length(self._match, min(n, self._options.max_tokens))
        return copy_tokens(tokens, self._place, self._drafted)

    def verified(self, n_tokens: int, seconds: float) -> None:
        self._pace.record(n_tokens, seconds)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Compare the new tokens with those that followed the match, drafted or not."""
        first, self._n_seen = self._n_seen, len(tokens)
        if first:
            self._pace.settle(len(tokens) - first, self._drafted)
        self._drafted = 0
        for token in tokens[first:] if self._match else ():
            is_right = tokens[self._place] == token
            self._pace.learn(self._match, is_right)
            if not is_right:
                self._match = 0
                break
            self._place += 1
            self._match += 1


def copy_tokens(tokens: Sequence[int], source: int, n: int) -> list[int]:
    """n tokens from tokens[source] on; a copy that reaches its own beginning repeats itself."""
    out = list(tokens[source : source + n])
    period = len(out)
    while len(out) < n:
        out.append(out[-period])
    return out
