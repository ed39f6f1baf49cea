"""What follows an answer of `kvarn ask`: how it ended, and its passages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...system.terminal import say, show
from ...system.text import one_line
from ..notices import tell_of_limit

if TYPE_CHECKING:
    from ...runtime.packs.asking import Answer

_SHOWN = 400
"""Characters of a passage that are shown."""


def tell_end(answer: Answer, n_passages: int) -> None:
    """Tell what follows an answer. n_passages: how many were asked for."""
    tell_of_limit(answer.finish, answer.n_tokens)
    for quote in answer.passages:
        show(f"  {quote.share:.0%}  {quote.place}: {one_line(_shortened(quote.text))}")
    if n_passages and not answer.passages:
        say("no passage weighed more than it does for a neutral question")


def _shortened(text: str) -> str:
    """A passage on one line, which ends with a whole word."""
    words = " ".join(text.split())
    if len(words) > _SHOWN and words[_SHOWN] != " ":
        words = words[:_SHOWN].rpartition(" ")[0] or words
    return f"… {words[:_SHOWN].rstrip()} …"
