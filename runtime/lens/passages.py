"""The passages that an answer attended to, as messages. Imports no NumPy and no kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

PASSAGES, MOST_PASSAGES = 3, 12
"""Passages that are named for an answer: by default, and at most."""


@dataclass(frozen=True)
class Passage:
    """Neighbouring tokens, from position `start` up to `stop`, which is not among them.

    share: of what a question and its answer draw beyond a neutral question
    (`weights.excess_shares`), 0 to 1. place: in the documents: "notes.txt, line 12", "page 3".
    """

    start: int
    stop: int
    share: float
    text: str
    place: str = ""


@dataclass(frozen=True)
class Source:
    """Tokens that were read as one text, from position `start` up to `stop`, which is not among
    them. name: stands before the places of its passages: "message 2, "."""

    start: int
    stop: int
    name: str = ""


@dataclass(frozen=True)
class Lens:
    """What an answer attended to. passages: those that weighed most, the largest share first. note:
    why there are none; "" if nothing weighed more than for a neutral question."""

    passages: list[Passage] = field(default_factory=list)
    note: str = ""
