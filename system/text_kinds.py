"""Recognises files that are not UTF-8 text, and says how to make a text of each.

HTML, source code and other markup are texts, read without a change.
"""

from __future__ import annotations

import re

from .reading import InputRefused

_PANDOC = "`pandoc -t plain FILE -o OUT.txt` makes one of it"
_KINDS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, rb"GGUF.{0,3}\0", "a model", "give the model before -f, or -m"),
    (0, rb"%PDF-\d", "a PDF file", "`pdftotext FILE OUT.txt` makes one of it"),
    (30, rb"mimetypeapplication/epub\+zip", "an EPUB book", _PANDOC),
    (30, rb"mimetypeapplication/vnd\.oasis", "an OpenDocument file", _PANDOC),
    (60, rb"BOOKMOBI", "a Kindle book", "Calibre's `ebook-convert FILE OUT.txt` makes one of it"),
    (0, rb"\xd0\xcf\x11\xe0", "an old Office file", "save it as plain text"),
    (0, rb"\x1f\x8b", "a gzip file", "unpack it with `gunzip -c FILE > OUT.txt`"),
    (0, rb"BZh[1-9]1AY&SY", "a bzip2 file", "unpack it with `bunzip2 -c FILE > OUT.txt`"),
    (0, rb"\xfd7zXZ", "an xz file", "unpack it with `xz -dc FILE > OUT.txt`"),
    (0, rb"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it with `zstd -dc FILE > OUT.txt`"),
    (0, rb"7z\xbc\xaf", "a 7-Zip archive", "unpack it and give the texts in it"),
    (257, rb"ustar", "a tar archive", "unpack it and give the texts in it"),
)
"""Offset and pattern of the bytes that identify a kind of file, its name, what to do with it."""
_ZIP = b"PK\x03\x04"
_WORD = b"word/document.xml"
_UTF32, _UTF16 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), (b"\xff\xfe", b"\xfe\xff")
_SAMPLE = 1 << 10


def check_text(data: bytes, name: str) -> None:
    """Raise `InputRefused`, which says what to do, unless `data` is UTF-8 text.

    name: the file's name, for the message.
    """
    check_kind(data, name)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x} at offset {error.start}"
        if b"\0" in data:
            raise InputRefused(
                f"{name} holds binary data ({byte} is no UTF-8): expected a text"
            ) from error
        raise InputRefused(
            f"{name} is not UTF-8 text: {byte}; {_iconv('latin1')} makes one of Latin-1"
        ) from error


def check_kind(data: bytes, name: str) -> None:
    """Raise `InputRefused`, which says what to do, for known kinds of files that are not text, and
    for UTF-16 and UTF-32."""
    kind, fix = _recognised(data)
    if kind:
        raise InputRefused(f"{name} is {kind}, expected a text: {fix}")
    if encoding := _wide_encoding(data):
        raise InputRefused(
            f"{name} is {encoding.upper()} text, expected UTF-8: {_iconv(encoding)} makes one of it"
        )


def known_kind(data: bytes) -> str:
    """The name of a known kind of file that is not text, as "a PDF file"; "" for others."""
    return _recognised(data)[0]


def _recognised(data: bytes) -> tuple[str, str]:
    """The kind, and how to make a text of it."""
    for offset, start, kind, fix in _KINDS:
        if re.compile(start, re.DOTALL).match(data, offset):
            return kind, fix
    if not data.startswith(_ZIP):
        return "", ""
    if _WORD in data:
        return "a Word file", _PANDOC
    return "a zip file", "unpack it and give the texts in it"


def _wide_encoding(data: bytes) -> str:
    """The encoding of a text in UTF-16 or UTF-32, "" for other data. Without a byte order mark,
    UTF-16 has a zero in every other byte."""
    if data.startswith(_UTF32):
        return "utf-32"
    if data.startswith(_UTF16):
        return "utf-16"
    even, odd = (data[first:_SAMPLE:2].count(0) for first in (0, 1))
    least = len(data[:_SAMPLE]) // 4
    if even == 0 and odd > least:
        return "utf-16le"
    return "utf-16be" if odd == 0 and even > least else ""


def _iconv(encoding: str) -> str:
    return f"`iconv -f {encoding} -t utf-8 FILE > OUT.txt`"
