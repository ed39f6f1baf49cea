"""The place of a passage in a document: its file, and the page or line."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ..documents.kinds import PAGE_END

_HEADING = re.compile(r"^==> (.+) <==$", re.MULTILINE)
_HEADING_BYTES = re.compile(_HEADING.pattern.encode(), re.MULTILINE)


def place_of(text: str, offset: int) -> str:
    """The place of a character: "notes.txt, line 12", or "page 3" where form feeds end pages.

    text: all documents, as `documents.joined` writes them; one alone has no name.
    """
    name, start, stop = "", 0, len(text)
    if _HEADING.match(text):
        for heading in _HEADING.finditer(text):
            if heading.start() > offset:
                stop = heading.start()
                break
            name, start = f"{heading[1]}, ", heading.end() + 1
    if PAGE_END in text[start:stop]:
        return f"{name}page {text.count(PAGE_END, start, offset) + 1:,}"
    return f"{name}line {text.count(chr(10), start, offset) + 1:,}"


def borders_of(text: str, pieces: Sequence[bytes]) -> list[int]:
    """Find the positions, in order, of the tokens with which a page or a document begins.

    text: as in `place_of`. pieces: the bytes of its tokens, one by one.
    """
    data, stops = b"".join(pieces), list(accumulate(map(len, pieces)))
    ends = (page.end() - 1 for page in re.finditer(PAGE_END.encode(), data))
    borders = {bisect_right(stops, end) + 1 for end in ends}
    if _HEADING.match(text):
        headings = _HEADING_BYTES.finditer(data)
        borders |= {bisect_right(stops, heading.start()) for heading in headings}
    return sorted(borders)
