"""PDF: the text of each page, as pypdf extracts it. Pages end in form feeds, as pdftotext's do."""

from __future__ import annotations

import logging
import re
import unicodedata
from io import BytesIO

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError

from ...system.reading import MOST_TEXT
from .kinds import PAGE_END, DocumentRefused, Notice

_LIGATURES = re.compile("[\ufb00-\ufb06]")


def text_of(data: bytes, name: str, notice: Notice) -> str:
    """The text of all pages, each with `PAGE_END` after it. notice: tells of pages without text.

    Raises `DocumentRefused` for a file that needs a password, and one of scans alone.
    """
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # kvarn reports what matters
    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted:
        _decrypt(reader, name)
    pages: list[str] = []
    room = MOST_TEXT
    for page in reader.pages:
        pages.append(page.extract_text())
        room -= len(pages[-1])
        if room < 0:
            raise DocumentRefused(f"{name} has more than {MOST_TEXT:,} characters: cut it in parts")
    empty = [number for number, text in enumerate(pages, 1) if not text.strip()]
    if len(empty) == len(pages):
        raise DocumentRefused(
            f"{name} has {len(pages):,} pages and no text, as scans have: "
            "`ocrmypdf FILE OUT.pdf` recognises the text in it"
        )
    if empty:
        notice(
            f"{name}: {len(empty):,} of {len(pages):,} pages have no text, the first of them page "
            f"{empty[0]:,}"
        )
    text = "".join(f"{page}\n{PAGE_END}" for page in pages)
    return _LIGATURES.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)


def _decrypt(reader: PdfReader, name: str) -> None:
    """Most encrypted files open with the empty password."""
    try:
        opens = reader.decrypt("") != PasswordType.NOT_DECRYPTED
    except DependencyError as error:
        raise DocumentRefused(
            f"{name} is encrypted by AES: pip install 'cryptography>=43' lets kvarn read it"
        ) from error
    if not opens:
        raise DocumentRefused(
            f"{name} is encrypted: `qpdf --decrypt --password=PASSWORD FILE OUT.pdf` makes one "
            "that kvarn can read"
        )
