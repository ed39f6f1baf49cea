"""The place of a passage in a document: its file, and the page or line."""

from __future__ import annotations

import re

from ..documents.kinds import PAGE_END

_HEADING = re.compile(r"^==> (.+) <==$", re.MULTILINE)


def place_of(text: str, offset: int) -> str:
    """The place of a character: "notes.txt, line 12", or "page 3" where form feeds end pages.

    text: all documents, as `documents.joined` writes them; one alone has no name.
    """
    name, start, stop = "", 0, len(text)
    if _HEADING.match(text):
        for found in _HEADING.finditer(text):
            if found.start() > offset:
                stop = found.start()
                break
            name, start = f"{found[1]}, ", found.end() + 1
    if PAGE_END in text[start:stop]:
        return f"{name}page {text.count(PAGE_END, start, offset) + 1:,}"
    return f"{name}line {text.count(chr(10), start, offset) + 1:,}"
