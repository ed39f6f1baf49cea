"""The samples that tasks generate: a context, and separate questions about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from .filler import Filler


@dataclass(frozen=True)
class Part:
    """A stretch of a context.

    is_foreseeable: whether a reader can partly predict it from the text before, such as prose or a
    list of few repeated words, but not the facts that a task hides.
    """

    text: str
    is_foreseeable: bool


@dataclass(frozen=True)
class Question:
    """A prompt that ends where its answer begins, without a space.

    reply: the right continuation, from its space to its full stop, which models are trained on.
    answers: the strings that a model's answer must contain; each counts for an equal share.
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


Task = Callable[[Random, int, int, Filler], Sample]
"""(rng, characters of context, most questions, filler) → sample. A context is at most as long as
asked for, or as a single fact needs; the same seed gives the same sample."""


def scatter(rng: Random, facts: list[str], n_chars: int, filler: Filler) -> tuple[Part, ...]:
    """Facts in order, at random places between sentences of filler; n_chars in all."""
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


def fitted(
    rng: Random, make: Callable[[int], tuple[list[str], str]], n: int, least: int, n_chars: int
) -> tuple[list[str], str]:
    """`make(n)`, whose second part is a text of at most n_chars, with n lowered as far as needed.

    Every attempt draws the same random numbers; `least` is the lowest n, whatever the length.
    """
    state = rng.getstate()
    while True:
        rng.setstate(state)
        words, text = make(n)
        if len(text) <= n_chars or n == least:
            return words, text
        n = max(least, min(n - 1, n * n_chars // len(text)))


def begun(parts: list[Part]) -> tuple[Part, ...]:
    """The parts that are not empty, the first without its leading space."""
    filled = [part for part in parts if part.text]
    if filled:
        filled[0] = replace(filled[0], text=filled[0].text.lstrip())
    return tuple(filled)
