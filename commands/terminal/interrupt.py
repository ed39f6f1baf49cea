"""Ctrl-C: what it stops, and the line that the program ends with."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from .progress import ReadingBar


@contextmanager
def on_ctrl_c(last_line: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C inside it, the program ends with the line that `last_line` returns."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(last_line()) from None


class ReadingStopped(Exception):
    """Raised by a prefill's progress callback when the user has interrupted it."""


class Interruptible:
    """While it is open, Ctrl-C only sets `asked`; a second one raises `KeyboardInterrupt`.

    So the model always finishes the chunk or token that it computes: the context stays consistent.
    rises: whether one context is read, whose later tokens take longer.
    """

    def __init__(self, rises: bool = True) -> None:
        self.asked = False
        self._previous: Any = None
        self._bar = ReadingBar("reading", rises=rises)

    def __enter__(self) -> Interruptible:
        self._previous = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)
        self.clear_bar()

    def progress(self, done: int, total: int) -> None:
        """For `Context.prefill`: shows how far it is; stops between chunks if asked to."""
        self._bar(done, total)
        if self.asked:
            raise ReadingStopped

    def clear_bar(self) -> None:
        """Takes the bar off the terminal."""
        self._bar.close()

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
