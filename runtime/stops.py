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
        found = (stop,) if isinstance(stop, str) else tuple(stop)
    except TypeError:
        raise StopError(f"stop is {stop!r:.50}: expected text, or some texts") from None
    for one in found:
        if not isinstance(one, str):
            raise StopError(f"stop holds {one!r:.50}: expected text")
    return tuple(dict.fromkeys(one for one in found if one))


class StopMatcher:
    """Lets text through up to the first stop string; drops it and what follows.

    Holds back only the longest end of the text that may begin a stop string. Of several stop
    strings, the one that is complete first ends the text; of those complete at the same character,
    the longest.
    """

    def __init__(self, stops: str | Iterable[str] = ()) -> None:
        self._stops = stop_strings(stops)
        self._held = ""
        self._stopped = False

    @property
    def held(self) -> str:
        """Text that has been pushed and not emitted."""
        return self._held

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next piece; returns the text to show, and whether a stop string appeared."""
        if self._stopped:
            return "", True
        text = self._held + text
        found = self._first_stop(text)
        if found is not None:
            self._held, self._stopped = "", True
            return text[:found], True
        keep = self._open_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The text still held back, after a stream that ended without a stop string."""
        text, self._held = self._held, ""
        return text

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string that is complete first begins."""
        matches = (
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        )
        return min(matches, default=(0, None))[1]

    def _open_end(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
