"""The texts of control tokens, as people may write them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class ControlTexts:
    """Finds the texts of a vocabulary's control tokens in other text."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts = sorted(texts)
        self._beginnings = {text[:2] for text in self._texts}
        self._first = {text[0] for text in self._texts}
        self._longest = max(map(len, self._texts), default=0)

    def within(self, text: str) -> list[str]:
        """Those that `text` contains, the longest first."""
        there = {beginning for beginning in self._beginnings if beginning in text}
        if not there:
            return []
        found = [one for one in self._texts if one[:2] in there and one in text]
        return sorted(found, key=len, reverse=True)

    def begun(self, text: str) -> int:
        """Length of the longest end of `text` that begins one of them without being all of it."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] not in self._first:
                continue
            end = text[start:]
            i = bisect_left(self._texts, end)
            i += self._texts[i : i + 1] == [end]
            if i < len(self._texts) and self._texts[i].startswith(end):
                return len(end)
        return 0
