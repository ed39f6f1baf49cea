"""Text to learn encoders from that holds nothing of `evals/tasks`: novels, notes and questions.

Running text of books, interrupted by notes about made-up things, by questions about notes from
farther back, and by passages that are repeated: a reader of it asks queries that look far back.
Things are named by words of the text itself, and no note or question is worded as the tasks'.
"""

import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvarn.evals.tasks import Filler

NEAREST, FARTHEST = 400, 200_000
"""Characters between a note or passage and where it comes back; all orders of size alike."""
PROSE = 6
"""Sentences between two interruptions, on average."""

VALUES = (
    ("Entry: {a}, {v}.", "Look up the entry: {a}, {v}."),
    ("{a} weighs {v} grains.", "How much does it weigh? {a} weighs {v} grains."),
    ("({a} is kept in drawer {v}.)", "Try the drawer of {a}, drawer {v}."),
    ("{a} was entered under {v}", "Find {a}. Entered under {v}"),
    ("A clerk counted {a} at {v}.", "Count again: {a} at {v}."),
    ("[{a}: {v}]", "See [{a}: {v}]"),
)
"""A note of a value v of a thing a, and a question about it with its reply."""
LINKS = (
    ("After {a} comes {b}.", "What comes after {a}? {b}"),
    ("{a} points to {b}.", "Follow where {a} points. {b}"),
    ("Whoever meets {a} is sent on to {b}.", "On from {a} to {b}"),
    ("Next of kin to {a}: {b}.", "Who is kin to {a}? {b}"),
)
"""The same of the thing b that follows a. The reply goes on with what is known of b."""
AGAIN = ("As it was put before:", "To repeat what has been read:", "Again, word for word:", "...")
"""What leads to a passage that is repeated."""


@dataclass
class Thing:
    """What has been noted of a thing, and after how many characters."""

    name: str
    at: int
    value: str = ""
    of_value: str = ""
    next: "Thing | None" = None
    of_next: str = ""


@dataclass
class Notebook:
    """What has been written so far."""

    rng: random.Random
    words: list[str]
    written: int = 0
    things: list[Thing] = field(default_factory=list)
    passages: list[tuple[int, str]] = field(default_factory=list)

    def note(self) -> str:
        """A value of a new thing, or a link from it to one that is known or new."""
        thing = self._new()
        if self.rng.random() < 0.5:
            return self._value_of(thing)
        form, thing.of_next = self.rng.choice(LINKS)
        known = self.things[-40:-1]
        thing.next = self.rng.choice(known) if known and self.rng.random() < 0.7 else self._new()
        text = form.format(a=thing.name, b=thing.next.name)
        return text if thing.next.value else f"{text} {self._value_of(thing.next)}"

    def question(self) -> str:
        """What is known of a thing from farther back, and of those that follow it."""
        thing = self.things[self._before([one.at for one in self.things])]
        text = ""
        while thing.next is not None and len(text) < 200:
            text += thing.of_next.format(a=thing.name, b=thing.next.name) + ". "
            thing = thing.next
        return text + thing.of_value.format(a=thing.name, v=thing.value)

    def passage(self) -> str:
        """A sentence from farther back, once more."""
        text = self.passages[self._before([at for at, _ in self.passages])][1]
        return f"{self.rng.choice(AGAIN)}{text}"

    def _new(self) -> Thing:
        name = " ".join(self.rng.sample(self.words, 2))
        thing = Thing(name.title() if self.rng.random() < 0.5 else name, self.written)
        self.things.append(thing)
        return thing

    def _value_of(self, thing: Thing) -> str:
        form, thing.of_value = self.rng.choice(VALUES)
        thing.value = str(self.rng.randrange(10 ** self.rng.choice((3, 4, 6))))
        return form.format(a=thing.name, v=thing.value)

    def _before(self, places: list[int]) -> int:
        """Which of the places, ascending, is about as far back as a draw says."""
        back = NEAREST * (FARTHEST / NEAREST) ** self.rng.random()
        return max(0, bisect(places, self.written - back) - 1)


def pieces(filler: Filler, seed: int) -> Iterator[str]:
    """An endless text, piece by piece."""
    rng = random.Random(seed)
    sentences = filler.sentences(rng)
    first = [next(sentences) for _ in range(2_000)]
    words = {word.lower() for text in first for word in text.split() if word.isalpha()}
    book = Notebook(rng, sorted(word for word in words if 4 <= len(word) <= 9))
    while True:
        text = next(sentences)
        book.passages.append((book.written, text))
        if rng.random() < 1 / PROSE:
            text += f"\n{_interruption(rng, book)}\n"
        if rng.random() < 1 / 400:
            sentences = filler.sentences(rng)
        book.written += len(text)
        yield text


def _interruption(rng: random.Random, book: Notebook) -> str:
    """Some notes, some questions, or a few passages."""
    kind = rng.random()
    if kind < 0.3 or not book.things:
        return " ".join(book.note() for _ in range(rng.randint(1, 3)))
    if kind < 0.7:
        return "\n".join(book.question() for _ in range(rng.randint(1, 4)))
    return "\n".join(book.passage() for _ in range(rng.randint(1, 2)))
