"""HTML: its text with headings, lists and tables as Markdown has them, without links and images."""

from __future__ import annotations

import re
import warnings

from bs4 import BeautifulSoup, XMLParsedAsHTMLWarning
from markdownify import MarkdownConverter

from .kinds import DocumentRefused, Notice

MOST_MARKUP = 64 << 20
"""Bytes of markup: a tree of it takes some thirty times as much memory."""
_UNSEEN = ["head", "script", "style", "template", "noscript", "svg", "img"]


def text_of(data: bytes, name: str, notice: Notice) -> str:
    """The text of a page. Raises `DocumentRefused` above `MOST_MARKUP` bytes."""
    if len(data) > MOST_MARKUP:
        raise DocumentRefused(
            f"{name} has {len(data):,} bytes of markup, more than {MOST_MARKUP:,}: cut it in parts"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)  # XHTML is HTML enough
        soup = BeautifulSoup(data, "lxml")
    for tag in soup.find_all(_UNSEEN):
        tag.decompose()
    converter = MarkdownConverter(
        heading_style="ATX",
        bullets="-",
        strip=["a"],
        escape_asterisks=False,
        escape_underscores=False,
        escape_misc=False,
    )
    text = str(converter.convert_soup(soup))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
