"""Reads turns from a terminal or a pipe: lines, and blocks between triple quotes."""

from __future__ import annotations

import contextlib
import io
import sys

from ...system import terminal

_QUOTES = '"""'


class TurnReader:
    """Turns as the user types them; on a terminal with line editing and history of this run."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._editing = self.interactive and sys.stdout.isatty()
        if self._editing:
            _load_line_editing()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")

    def read(self) -> str | None:
        """The next turn, None at the end of input. `KeyboardInterrupt` passes through."""
        line = self._line("> ")
        if line is None or not line.lstrip().startswith(_QUOTES):
            return line
        lines = [line.lstrip().removeprefix(_QUOTES)]
        while not lines[-1].rstrip().endswith(_QUOTES):
            more = self._line("… ")
            if more is None:  # the end of input closes the block
                return "\n".join(lines)
            lines.append(more)
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        if self._editing:
            try:
                return input(prompt)
            except EOFError:
                return None
        if self.interactive:
            terminal.prompt(prompt)
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None


def _load_line_editing() -> None:
    """`input` edits lines once this module is loaded; some Pythons are built without it."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
