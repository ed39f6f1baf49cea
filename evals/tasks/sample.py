"""What a task is made of: a context, and separate questions about it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .filler import Filler


@dataclass(frozen=True)
class Part:
    """A stretch of a context.

    is_foreseeable: whether what stands before it lets a reader guess at it, as with running text or
    a list of few words over and over; not so what a task hid.
    """

    text: str
    is_foreseeable: bool


@dataclass(frozen=True)
class Question:
    """A prompt that ends where its answer begins, without a space.

    reply: how a reader who knows continues, from its space to its full stop; the text that models
    are trained on. answers: the strings that must occur in what a model writes; each found one
    counts for its share.
    """

    text: str
    reply: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """A context and the questions about it, which may be asked in any order, each by itself."""

    parts: tuple[Part, ...]
    questions: tuple[Question, ...]

    @property
    def context(self) -> str:
        """The whole text to be read before a question."""
        return "".join(part.text for part in self.parts)


Task = Callable[[random.Random, int, int, Filler], Sample]
"""(random, characters of context, most questions, filler) -> sample. A context is at most as long
as asked for (but for what a single fact needs); the same seed gives the same sample."""


def scatter(rng: random.Random, facts: list[str], n_chars: int, filler: Filler) -> tuple[Part, ...]:
    """Facts in their order at random places between sentences of filler, n_chars in all."""
    room = n_chars - sum(len(fact) + 1 for fact in facts)
    sentences: list[str] = []
    for sentence in filler.sentences(rng):
        room -= len(sentence)
        if room < 0:
            break
        sentences.append(sentence)
    places = sorted(rng.randint(0, len(sentences)) for _ in facts)
    parts: list[Part] = []
    done = 0
    for place, fact in zip(places, facts, strict=True):
        parts.append(Part("".join(sentences[done:place]), True))
        parts.append(Part(" " + fact, False))
        done = place
    parts.append(Part("".join(sentences[done:]), True))
    return begun(parts)


def begun(parts: list[Part]) -> tuple[Part, ...]:
    """The parts that hold something, the first without its leading space."""
    held = [part for part in parts if part.text]
    if held:
        held[0] = Part(held[0].text.lstrip(), held[0].is_foreseeable)
    return tuple(held)
