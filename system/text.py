"""Text from outside (files, the hub, the command line, libraries) on its way to a terminal.

A model's name may hold escape sequences that move the cursor, rename the window or forge a line of
kvarn's own. `one_line` and `lines` make any such text visible and harmless, `shown` puts it into a
message, `printable` lets generated text pass. `terminal` writes nothing that went through none.
"""

from __future__ import annotations

import reprlib

MESSAGE = 2000
"""Characters of a message that are shown: an argument alone may have 128 KB."""

# What reorders a line of text: embeddings and overrides, isolates.
_REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def one_line(text: str, limit: int | None = None) -> str:
    """`text` on one line: what does not print is escaped as in Python, backslashes stay.

    Longer than `limit` it loses its middle: a message names its subject first, its reason last.
    """
    if limit is not None and len(text) > limit:
        half = max(1, (limit - 3) // 2)
        text = f"{text[:half]} … {text[-half:]}"
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)
    )


def lines(text: str) -> str:
    """Lines of kvarn's own, which may quote others: newline and tab stay, the rest is escaped."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def shown(text: str | bytes, limit: int = 64) -> str:
    """Text of unknown origin for a message: quoted, escaped, one line, at most `limit` long."""
    quoted = repr(text[:limit])
    return quoted if len(text) <= limit else f"{quoted}…"


def brief(value: object, limit: int = 60) -> str:
    """A value of a file for a message: what Python would print of it, on one line, cut short.

    Costs no more for a large value than for a small one.
    """
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = writer.maxlong = limit
    written = writer.repr(value)
    return one_line(" ".join(written.split()), limit)


def printable(text: str) -> str:
    """Generated text for a terminal: of what controls one, newline and tab stay.

    Marks that reorder text are dropped, too; those that shape words and emoji are not.
    """
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or not _controls(c))


def _controls(character: str) -> bool:
    """Whether a terminal would obey it: C0, DEL, C1, marks that reorder text."""
    return character < " " or "\x7f" <= character <= "\x9f" or character in _REORDERING


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]
