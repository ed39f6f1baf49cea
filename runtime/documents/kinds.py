"""Which kind of document some bytes are, and the reader of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ...system.errors import KvarnError
from ...system.extras import how_to_install
from ...system.reading import MOST_TEXT, STDIN, InputRefused, read_text
from ...system.text import one_line
from ...system.text_kinds import check_kind, check_text, known_kind

Notice = Callable[[str], None]
PAGE_END = "\f"
"""What stands after each page of a document that has pages, as in pdftotext's texts."""


class DocumentRefused(InputRefused):
    """A document is damaged, encrypted, without text, or larger than what is read."""


class ReaderMissing(KvarnError):
    """The packages that read a kind of document are not installed."""


@dataclass(frozen=True)
class Kind:
    """A kind of document. reader: its module here, whose `text_of(data, name, notice)` reads one.
    otherwise: what to do without it."""

    name: str
    reader: str
    otherwise: str


_PANDOC = "`pandoc -t plain FILE -o OUT.txt` makes a text of it"
HTML = Kind("an HTML page", "markup", "`-f - < FILE` reads its markup as it stands")
_KINDS = {
    "a PDF file": Kind("a PDF file", "pdf", "`pdftotext FILE OUT.txt` makes a text of it"),
    "a Word file": Kind("a Word file", "word", _PANDOC),
    "an EPUB book": Kind("an EPUB book", "epub", _PANDOC),
}
HTML_NAMES = (".html", ".htm", ".xhtml")


def read_document(path: Path, limit: int = MOST_TEXT, notice: Notice = lambda line: None) -> str:
    """The text of a file or pipe, or of standard input (`-`): of at most `limit` bytes.

    notice: called with a line about what of a document could not be read. Raises what `text_of`
    raises; `InputRefused` for folders and devices; OSError.
    """
    data = read_text(path, limit)
    name = "the text from stdin" if path == STDIN else str(path)
    text = text_of(data, name, path.suffix, notice)
    if len(text) > limit:
        raise DocumentRefused(
            f"{name} holds more than the {limit:,} characters that are read at once: cut it into "
            "parts"
        )
    return text


def is_document(data: bytes, suffix: str) -> bool:
    """Whether `text_of` makes a text of these bytes that is another than they are."""
    return known_kind(data) in _KINDS or (suffix.lower() in HTML_NAMES and b"\0" not in data)


def text_of(data: bytes, name: str, suffix: str = "", notice: Notice = lambda line: None) -> str:
    """The text of a document's bytes. HTML goes by the suffix (`.html`), other kinds by the bytes.

    name: the document's, for messages. Raises `DocumentRefused` for a document that cannot be
    read, `InputRefused` for what is no text, `ReaderMissing` without the packages that it needs.
    """
    kind = _KINDS.get(known_kind(data))
    if kind is None:
        if suffix.lower() not in HTML_NAMES or b"\0" in data:
            check_text(data, name)
            return data.decode("utf-8")
        check_kind(data, name)
        kind = HTML  # in any encoding, which pages name
    try:
        reader = import_module(f".{kind.reader}", __package__)
    except ImportError as error:
        raise ReaderMissing(
            f"{name} is {kind.name}, which needs the package {error.name}: "
            f"{how_to_install('docs')}; without it, {kind.otherwise}"
        ) from error
    with _one_line_errors(kind, name):
        text: str = reader.text_of(data, name, notice)
    text = text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    if not text.strip():
        raise DocumentRefused(f"{name} is {kind.name} without any text")
    return text


@contextmanager
def _one_line_errors(kind: Kind, name: str) -> Iterator[None]:
    """Libraries raise whatever a damaged file leads them to: it becomes one line."""
    try:
        yield
    except (KvarnError, MemoryError):
        raise
    except Exception as error:
        reason = one_line(str(error) or type(error).__name__, 120)
        raise DocumentRefused(
            f"{name} is damaged: it begins as {kind.name}, and cannot be read as one ({reason})"
        ) from error
