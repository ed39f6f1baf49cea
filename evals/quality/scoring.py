"""The score of an answer, and how long it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...runtime.tokenizer import Tokenizer
    from ..tasks import Question

MARGIN = 8
"""Tokens added to the expected reply, for other wordings of it."""


def score(text: str, answers: Sequence[str]) -> float:
    """The share of `answers` that occur in `text`, ignoring case.

    Source: RULER's `string_match_all` (scripts/eval/synthetic/constants.py).
    """
    said = text.lower()
    return sum(answer.lower() in said for answer in answers) / len(answers)


def most_tokens(tokenizer: Tokenizer, question: Question) -> int:
    """Most tokens of an answer: 1.5 times those of the expected reply, and a margin."""
    reply = tokenizer.encode(question.reply, bos=False)
    return len(reply) * 3 // 2 + MARGIN
