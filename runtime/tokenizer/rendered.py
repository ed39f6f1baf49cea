"""Text that a chat template wrote, with what people wrote in it marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]
"""Start and stop of some characters."""


class Rendered(str):
    """A text whose control tokens count, except where it quotes people.

    quoted: spans of what people wrote, in order and without overlaps; no control token has a
    character there. Text that is added to it becomes quoted. Anything else that is made of it
    (a slice, an f-string) is a plain str, in which no control token counts.
    """

    quoted: tuple[Span, ...]

    def __new__(cls, text: str = "", quoted: Iterable[Span] = ()) -> Rendered:
        self = super().__new__(cls, text)
        self.quoted = tuple(quoted)
        return self

    def __add__(self, other: str) -> Rendered:
        return Rendered(str.__add__(self, other), [*_spans(self, 0), *_spans(other, len(self))])

    def __radd__(self, other: str) -> Rendered:
        return Rendered(str.__add__(other, self), [*_spans(other, 0), *_spans(self, len(other))])

    def continues(self, other: Rendered) -> bool:
        """Whether it begins with the text of `other`, quoted in the same places."""
        size = len(other)
        return self.startswith(other) and other.quoted == tuple(
            span for span in self.quoted if span[0] < size
        )


def _spans(text: str, offset: int) -> Iterator[Span]:
    """What is quoted of a text that begins at `offset`."""
    spans = text.quoted if isinstance(text, Rendered) else ((0, len(text)),)
    return ((offset + start, offset + stop) for start, stop in spans if start < stop)
