"""The text of an answer while it comes. Parsers are generators that yield where they need more."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], object]


class MalformedCall(Exception):
    """The text is no call."""


class Source:
    """Reads a text from its start; `mark` holds back what is still wanted as it was written.

    What a method decides does not depend on how the text was cut into pieces.
    """

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._mark: int | None = None

    def add(self, text: str) -> None:
        """The next piece of the answer."""
        first = self._at if self._mark is None else self._mark
        self._text = self._text[first:] + text
        self._at -= first
        self._mark = None if self._mark is None else 0

    def mark(self) -> None:
        """Keep the text from here on, for `marked`."""
        self._mark = self._at

    def unmark(self) -> None:
        self._mark = None

    def rewind(self) -> None:
        """Go back to the mark, and take it away."""
        assert self._mark is not None
        self._at, self._mark = self._mark, None

    @property
    def marked(self) -> str:
        """The text since `mark`."""
        return self._text[self._at if self._mark is None else self._mark : self._at]

    def peek(self) -> Steps[str]:
        """The next character; "" at the end of the answer."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def next(self) -> Steps[str]:
        """Read the next character; `MalformedCall` at the end of the answer."""
        character = yield from self.peek()
        if not character:
            raise MalformedCall
        self._at += 1
        return character

    def run(self, pattern: re.Pattern[str], sink: Sink) -> Steps[None]:
        """Read characters of a class: `pattern` matches any number of them."""
        while True:
            match = pattern.match(self._text, self._at)
            assert match is not None
            sink(match[0])
            self._at = match.end()
            if self._at < len(self._text) or self.ended:
                return
            yield

    def space(self, sink: Sink = len) -> Steps[None]:
        """Read white space, if some stands here."""
        yield from self.run(_SPACE, sink)

    def literal(self, text: str) -> Steps[bool]:
        """Read `text` if it stands here, else nothing; whether it did."""
        while True:
            rest = self._text[self._at : self._at + len(text)]
            if rest == text:
                self._at += len(text)
                return True
            if self.ended or not text.startswith(rest):
                return False
            yield

    def expect(self, text: str) -> Steps[None]:
        """Read `text`; `MalformedCall` where another one stands."""
        if not (yield from self.literal(text)):
            raise MalformedCall

    def until(self, ends: Sequence[str], sink: Sink, whole: bool = False) -> Steps[str]:
        """Read up to and with the first of `ends`, and give what stands before it to `sink` as it
        comes; the end, "" where the answer ended. whole: `MalformedCall` there."""
        while True:
            text, at = self._text, self._at
            hits = [(place, -len(end), end) for end in ends if (place := text.find(end, at)) >= 0]
            hit = min(hits, default=None)
            begun = len(text) if self.ended else _begun(text, at, ends)
            if hit is not None and hit[0] <= begun:
                sink(text[at : hit[0]])
                self._at = hit[0] + len(hit[2])
                return hit[2]
            sink(text[at:begun])
            self._at = begun
            if self.ended:
                if whole:
                    raise MalformedCall
                return ""
            yield


_SPACE = re.compile(r"\s*")


def _begun(text: str, at: int, ends: Sequence[str]) -> int:
    """The start of the longest suffix of `text` that is a prefix of one of `ends`."""
    first = len(text)
    for end in ends:
        for size in range(min(len(end) - 1, len(text) - at), len(text) - first, -1):
            if text.endswith(end[:size]):
                first = len(text) - size
                break
    return first
