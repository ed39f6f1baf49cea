"""Filler: sentences that have nothing to do with the questions."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from random import Random

from . import names

_SENTENCE = re.compile(r"\s*\S.*?(?:[.!?;:][\"')]*(?=\s)|(?=\n)|$)")


class Filler(ABC):
    """A source of sentences."""

    @abstractmethod
    def sentences(self, rng: Random) -> Iterator[str]:
        """Sentences without end, each with the space or line break before it."""


class Prose(Filler):
    """The text of given documents, from a random sentence on, repeated without end.

    As the essays in RULER's needle tasks. Several line breaks become one.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._sentences: list[str] = []
        for text in texts:
            for sentence in _SENTENCE.finditer(text):
                lead = "\n" if "\n" in sentence[0] or not sentence.start() else " "
                self._sentences.append(lead + " ".join(sentence[0].split()))
        if not self._sentences:
            raise ValueError("filler: the texts hold no sentence")

    def sentences(self, rng: Random) -> Iterator[str]:
        at = rng.randrange(len(self._sentences))
        while True:
            yield self._sentences[at]
            at = (at + 1) % len(self._sentences)


class Plain(Filler):
    """Simple sentences put together from word lists: filler that needs no files."""

    def sentences(self, rng: Random) -> Iterator[str]:
        count = 0
        while True:
            count += 1
            form = rng.choice(names.PLAIN_FORMS)
            sentence = form.format(
                a=rng.choice(names.ADJECTIVES),
                b=rng.choice(names.ADJECTIVES),
                n=rng.choice(names.NOUNS),
                m=rng.choice(names.NOUNS),
                p=rng.choice(names.PLACES),
            )
            yield ("\n" if count % 8 == 1 else " ") + sentence
