"""One answer while it is read: its source, its events, and the white space around calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .events import Writer
from .source import MalformedCall, Sink, Source, Steps
from .tools import Tools


class Prose:
    """Text without white space at its end, which waits for what follows, nor where `skips`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._space = ""
        self.skips = False
        """Whether white space that comes now is dropped."""

    def __call__(self, piece: str) -> None:
        if self.skips:
            piece = piece.lstrip()
        if not piece:
            return
        self.skips = False
        kept = piece.rstrip()
        if kept:
            self._sink(self._space + kept)
            self._space = ""
        self._space += piece[len(kept) :]

    def drop(self) -> None:
        """Drop the white space before and after what stands here."""
        self._space, self.skips = "", True

    def flush(self) -> None:
        """The end of the text: its white space, too."""
        self._sink(self._space)
        self._space = ""


class Reading:
    """What formats work on."""

    def __init__(self, tools: Tools, writer: Writer) -> None:
        self.source, self.writer, self.tools = Source(), writer, tools
        self.prose = Prose(writer.text)

    def prose_until(self, ends: Sequence[str]) -> Steps[str]:
        """Pass text on up to one of `ends`, and read that; "" at the end of the answer."""
        return (yield from self.source.until(ends, self.prose))

    def attempt(self, read: Callable[[], Steps[None]], marker: str = "") -> Steps[bool]:
        """Read a call after its marker; whether one stood here. If not, all of it is text: from
        its marker on, or, where the call has begun already, what follows."""
        n_calls = self.writer.n_calls
        self.source.mark()
        try:
            yield from read()
        except MalformedCall:
            if self.writer.n_calls == n_calls:
                self.prose(marker + self.source.marked)
                return False
            self.writer.is_open = False
        finally:
            self.source.unmark()
        self.prose.drop()
        return True
