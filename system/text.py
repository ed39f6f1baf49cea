"""Text from outside (files, the hub, the command line) on its way to a terminal.

A model's name may hold escape sequences that move the cursor, rename the window or forge a line of
kvarn's own. `one_line` makes any such text visible and harmless; `printable` lets the newlines and
tabs of generated text pass.
"""

from __future__ import annotations

import reprlib
import unicodedata

# Cc: C0, DEL, C1. Cf: bidirectional overrides and invisible marks. Cs: halves of a surrogate pair,
# which no encoding takes. Zl, Zp: line and paragraph separators. Co, Cn pass: fonts decide.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # they shape letters and emoji and move nothing


def one_line(text: str, limit: int = 300) -> str:
    """`text` on one line, at most `limit` long, with what a terminal would obey escaped."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if _is_safe(c) else _escaped(c) for c in cut)


def brief(value: object, limit: int = 60) -> str:
    """A value of a file for a message: what Python would print of it, on one line, cut short.

    Costs no more for a large value than for a small one.
    """
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = writer.maxlong = limit
    written = writer.repr(value)
    return one_line(" ".join(written.split()), limit)


def printable(text: str) -> str:
    """Generated text for a terminal: newline and tab stay, other control characters are dropped."""
    return "".join(c for c in text if c in "\n\t" or _is_safe(c))


def _is_safe(character: str) -> bool:
    return (
        (character.isascii() and character.isprintable())
        or character in _JOINERS
        or unicodedata.category(character) not in _UNSAFE
    )


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]
