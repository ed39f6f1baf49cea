"""Text that a chat template wrote, with spans that people wrote; the texts of control tokens."""

from __future__ import annotations

from bisect import bisect_left
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

    def rest(self, start: int) -> Rendered:
        """The text from a place on that is not quoted, quoted as it is."""
        spans = ((first - start, stop - start) for first, stop in self.quoted if first >= start)
        return Rendered(self[start:], spans)

    def continues(self, other: Rendered) -> bool:
        """Whether it begins with the text of `other`, quoted in the same places."""
        size = len(other)
        return self.startswith(other) and other.quoted == tuple(
            span for span in self.quoted if span[0] < size
        )


def _spans(text: str, offset: int) -> Iterator[Span]:
    """The quoted spans of a text that begins at `offset`."""
    spans = text.quoted if isinstance(text, Rendered) else ((0, len(text)),)
    return ((offset + start, offset + stop) for start, stop in spans if start < stop)


class ControlTexts:
    """Finds the texts of a vocabulary's control tokens in other text."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts = sorted(texts)
        self._beginnings = {text[:2] for text in self._texts}
        self._first = {text[0] for text in self._texts}
        self._longest = max(map(len, self._texts), default=0)

    def find(self, text: str) -> list[str]:
        """The control texts in `text`, the longest first."""
        present = {beginning for beginning in self._beginnings if beginning in text}
        texts = [t for t in self._texts if t[:2] in present and t in text] if present else []
        return sorted(texts, key=len, reverse=True)

    def partial_length(self, text: str) -> int:
        """Length of the longest end of `text` that begins one of them and is not all of it."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] not in self._first:
                continue
            end = text[start:]
            i = bisect_left(self._texts, end)
            i += self._texts[i : i + 1] == [end]
            if i < len(self._texts) and self._texts[i].startswith(end):
                return len(end)
        return 0
