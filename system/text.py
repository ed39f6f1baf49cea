"""Makes text from outside (files, the hub, the command line, libraries) safe for a terminal.

A model's name may hold escape sequences that move the cursor, rename the window or forge a line of
kvarn's. `one_line` and `lines` escape such text, `shown` and `brief` quote it in a message, and
`printable` filters generated text. `terminal` prints only text that one of them has processed.
"""

from __future__ import annotations

import reprlib

MESSAGE = 2000
"""Printed characters of a message; a single argument may have 128 KB."""

# Characters that reorder text: embeddings, overrides, isolates.
_REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def one_line(text: str, limit: int | None = None) -> str:
    """`text` on one line. Escapes characters that are not printable as Python does, and leaves
    backslashes.

    A text longer than `limit` loses its middle: a message has its subject first, its reason last.
    """
    if limit is not None and len(text) > limit:
        half = max(1, (limit - 3) // 2)
        text = f"{text[:half]} … {text[-half:]}"
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)
    )


def lines(text: str) -> str:
    """kvarn's own lines that hold text from outside. Escapes all but newlines and tabs."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def shown(text: str | bytes, limit: int = 64) -> str:
    """Text from outside for a message: the first `limit` characters, quoted and escaped."""
    quoted = repr(text[:limit])
    return quoted if len(text) <= limit else f"{quoted}…"


def brief(value: object, limit: int = 60, spelling: type[reprlib.Repr] = reprlib.Repr) -> str:
    """A value from a file for a message: its repr, cut short, on one line.

    A large value costs no more than a small one.
    """
    writer = spelling()
    writer.maxstring = writer.maxother = writer.maxlong = limit
    written = writer.repr(value)
    return one_line(" ".join(written.split()), limit)


def human_bytes(n_bytes: float) -> str:
    """`n_bytes` with a binary unit and three significant digits, or all four: 1536 → "1.5 KiB"."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while abs(n_bytes) >= 1024 and len(units) > 1:
        n_bytes /= 1024
        units.pop(0)
    whole = units[0] == "B" or abs(n_bytes) >= 999.5  # three digits of which are no exponent
    return f"{n_bytes:.0f} {units[0]}" if whole else f"{n_bytes:.3g} {units[0]}"


def printable(text: str) -> str:
    """Generated text for a terminal, without control characters except newline and tab.

    Drops characters that reorder text, too, and keeps those that join letters or emoji.
    """
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or not _controls(c))


def escaped(text: str) -> str:
    """A whole text: escapes the characters that `printable` drops, as Python does."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if c not in "\n\t" and _controls(c) else c for c in text)


def _controls(character: str) -> bool:
    """Whether a terminal acts on a character: C0, DEL, C1 or one that reorders text."""
    return character < " " or "\x7f" <= character <= "\x9f" or character in _REORDERING


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]
