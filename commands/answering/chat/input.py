"""Reads turns from a terminal or a pipe: lines, pastes, and blocks between triple quotes.

What is pasted in one go is one turn. GNU readline asks the terminal to mark pastes, and Enter sends
them. Elsewhere, a line that follows the one before at once was pasted with it, because nobody types
so fast: a last line without an end waits for Enter. Lines that were typed before the prompt came
cannot be told from a paste.
"""

from __future__ import annotations

import io
import os
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from ....system import terminal
from ....system.reading import stdin_named

_QUOTES = '"""'
_MORE = "… "
_PAUSE = 0.04
"""Seconds after a line end; what comes sooner belongs to the same paste."""


class TurnReader:
    """Turns as the user types them; on a terminal with line editing and history of this run."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._editing = self.interactive and any(map(os.isatty, (1, 2))) and _load_line_editing()
        self._ended = False
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")

    def read(self) -> str | None:
        """The next turn, None at the end of input. `KeyboardInterrupt` passes through."""
        text = self._paste("> ")
        if text is None or not text.lstrip().startswith(_QUOTES):
            return text
        if "\n" in text and not text.rstrip().endswith(_QUOTES):
            return text  # a paste that begins with a docstring opens no block
        parts = [text.lstrip().removeprefix(_QUOTES)]
        while not parts[-1].rstrip().endswith(_QUOTES):
            more = self._paste(_MORE)
            if more is None:  # the end of input closes the block
                return "\n".join(parts)
            parts.append(more)
        parts[-1] = parts[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(parts)

    def _paste(self, prompt: str) -> str | None:
        """A line, with those that were pasted with it; None at the end of input."""
        line = None if self._ended else self._line(prompt)
        if line is None or not self.interactive:
            return line
        lines = [line]
        while _follows_at_once():
            line = self._line(_MORE)
            if line is None:  # a terminal tells it once
                self._ended = True
                break
            lines.append(line)
        return "\n".join(lines).rstrip("\n")

    def _line(self, prompt: str) -> str | None:
        if self._editing:
            try:
                with _stdout_on_screen():
                    return input(prompt)
            except EOFError:
                return None
        if self.interactive:
            terminal.prompt(prompt)
        with stdin_named():
            line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None


def _follows_at_once() -> bool:
    """Whether the terminal sends more within `_PAUSE`, be it only a part of a line."""
    number = sys.stdin.fileno()
    if select.select([number], [], [], 0)[0]:
        return True
    before = termios.tcgetattr(number)
    by_character = termios.tcgetattr(number)
    by_character[3] &= ~termios.ICANON
    termios.tcsetattr(number, termios.TCSANOW, by_character)
    try:
        return bool(select.select([number], [], [], _PAUSE)[0])
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)


@contextmanager
def _stdout_on_screen() -> Iterator[None]:
    """`input` edits lines only where stdout is a terminal: stderr's stands in for another one."""
    if os.isatty(1):
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _load_line_editing() -> bool:
    """Whether `input` edits lines from now on; some Pythons are built without that."""
    try:
        import readline
    except ImportError:
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
    return True
