"""Word files (.docx): what mammoth makes of their paragraphs, lists and tables."""

from __future__ import annotations

from io import BytesIO
from zipfile import ZipFile

import mammoth

from .archives import Archive
from .kinds import Notice
from .markup import text_of as text_of_markup


def text_of(data: bytes, name: str, notice: Notice) -> str:
    """The text without images. Raises `DocumentRefused` where it unpacks to too much."""
    archive, parts = Archive(data, name), BytesIO()
    with ZipFile(parts, "w") as checked:  # mammoth reads what was read within the limit, no more
        for member in sorted(archive.names):
            if member.endswith((".xml", ".rels")):
                checked.writestr(member, archive.read(member))
    html = mammoth.convert_to_html(parts, convert_image=lambda image: []).value
    return text_of_markup(html.encode(), name, notice)
