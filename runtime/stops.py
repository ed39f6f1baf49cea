"""Stop strings in a stream of pieces of text; they may span several pieces."""

from collections.abc import Iterable

from ..system.errors import KvarnError


class StopError(KvarnError):
    """A stop string is not text."""


def stop_strings(stop: str | Iterable[str]) -> tuple[str, ...]:
    """One or several stop strings, without empty and repeated ones.

    A `str` is one stop string, not a sequence of characters. Raises `StopError` for what is not
    text.
    """
    try:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
    except TypeError:
        raise StopError(f"stop is {stop!r:.50}: expected text, or some texts") from None
    for text in stops:
        if not isinstance(text, str):
            raise StopError(f"stop holds {text!r:.50}: expected text")
    return tuple(dict.fromkeys(text for text in stops if text))


class StopMatcher:
    """Lets text through up to the first stop string; drops it and what follows.

    Holds back only the longest end of the text that may begin a stop string. Of several stop
    strings, the first one that is complete ends the text; of those that are complete at the same
    character, the longest.
    """

    def __init__(self, stops: str | Iterable[str] = ()) -> None:
        self._stops = stop_strings(stops)
        self._pending = ""
        self.stop = ""
        """The stop string that has appeared; "": none has."""

    def push(self, text: str) -> str:
        """Take the next piece; returns the text to show."""
        if self.stop:
            return ""
        text = self._pending + text
        if first := self._first_stop(text):
            start, self.stop = first
            self._pending = ""
            return text[:start]
        end = len(text) - self._open_end(text)
        self._pending = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that is held back, at the end of the stream."""
        text, self._pending = self._pending, ""
        return text

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """The stop string that is completed first, and where it begins."""
        matches = (
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        )
        first = min(matches, default=None)
        return None if first is None else first[1:]

    def _open_end(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
