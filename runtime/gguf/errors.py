"""What is wrong with a GGUF file."""

from __future__ import annotations

from os import PathLike

from ...system.errors import KvarnError


class GGUFError(KvarnError):
    """`path`: `field`: found `found`, expected `expected`; and what to do, if there is something.

    The four parts are kept as attributes, so that a program can tell one fault from another.
    """

    def __init__(
        self, path: str | PathLike[str], field: str, found: str, expected: str, hint: str = ""
    ) -> None:
        self.path = str(path)
        self.field = field
        self.found = found
        self.expected = expected
        ending = f" ({hint})" if hint else ""
        super().__init__(f"{shown_path(path)}: {field}: found {found}, expected {expected}{ending}")


def shown(text: str | bytes, limit: int = 64) -> str:
    """Text of unknown origin for a message: quoted, escaped, one line, at most `limit` long."""
    quoted = ascii(text[:limit])
    return quoted if len(text) <= limit else f"{quoted}…"


def shown_path(path: str | PathLike[str]) -> str:
    """A path for a message: as it is unless it holds unprintable characters."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
