"""Documents of each kind become the text that was written into them; what cannot be read is told in
one line."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarn.runtime.documents import Document, documents_in, joined, read_document, text_of
from kvarn.runtime.documents.kinds import DocumentRefused, ReaderMissing
from kvarn.runtime.documents.markup import MOST_MARKUP
from kvarn.system.errors import KvarnError, message_of
from kvarn.system.reading import InputRefused

from . import made

PLAIN = "# A *mill*\n\nby the [river](u) <b>\n"


def quiet(line: str) -> None:
    raise AssertionError(line)


def needs_readers() -> None:
    for package in ("bs4", "lxml", "mammoth", "markdownify", "pypdf"):
        pytest.importorskip(package, reason="the extra docs is not installed")


@pytest.fixture
def readers() -> None:
    needs_readers()


pytestmark = pytest.mark.usefixtures("readers")


def test_plain_text_and_markdown_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("bs4", "lxml", "mammoth", "markdownify", "pypdf"):
        monkeypatch.setitem(sys.modules, package, None)
    for suffix in ("", ".txt", ".md", ".py"):
        assert text_of(PLAIN.encode(), "a", suffix, quiet) == PLAIN
    assert text_of(b"<!doctype html><p>x", "a", "", quiet) == "<!doctype html><p>x"


KINDS: dict[str, tuple[bytes, str]] = {
    "a PDF file": (made.pdf("The mill", "stood"), "pdftotext"),
    "a Word file": (made.word("The mill"), "pandoc"),
    "an EPUB book": (made.epub("The mill"), "pandoc"),
    "an HTML page": (b"<p>The mill", "`-f - < FILE` reads its markup"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_extra_a_line_tells_how_to_install_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith("kvarn.runtime.documents.") and name.rsplit(".", 1)[1] not in (
            "kinds",
            "files",
        ):
            monkeypatch.delitem(sys.modules, name)
    for package in ("bs4", "mammoth", "pypdf"):
        monkeypatch.setitem(sys.modules, package, None)
    data, otherwise = KINDS[kind]
    with pytest.raises(ReaderMissing) as refused:
        text_of(data, "x", ".html", quiet)
    line = message_of(refused.value)
    assert line.startswith(f"x is {kind}, which needs the package ")
    assert "pip install 'beautifulsoup4" in line and otherwise in line and "\n" not in line


def test_each_kind_becomes_the_text_in_it() -> None:
    assert text_of(made.pdf("The mill", "stood."), "x", "", quiet) == "The mill\n\fstood.\n\f"
    assert text_of(made.word("The mill", "Über &lt;b&gt;_"), "x") == "The mill\n\nÜber <b>_\n"
    assert text_of(made.epub("one", "two"), "x") == "## 0\n\none\n\n## 1\n\ntwo\n"


def test_a_page_keeps_its_words_and_their_order_alone() -> None:
    page = (
        b"<!doctype html><html><head><meta charset=latin1><title>no</title><style>no</style></head>"
        b"<body><script>no</script><h1>Caf\xe9</h1><p>a <a href=no>link</a> *_ <img alt=no src=no>"
        b"<ul><li>one<li>two</ul><table><tr><th>a<th>b<tr><td>1<td>2</table>"
    )
    text = text_of(page, "x", ".HTML")
    assert "no" not in text.replace("one", "")
    assert text.startswith("# Café\n\na link *_")
    assert "- one\n- two\n" in text and "| a | b |" in text and "| 1 | 2 |" in text


def encrypted(password: str) -> bytes:
    """A PDF file encrypted by RC4, which needs no further package."""
    pypdf: Any = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(io.BytesIO(made.pdf("The mill")))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    data = io.BytesIO()
    writer.write(data)
    return data.getvalue()


def test_encrypted_files_open_with_the_empty_password_alone() -> None:
    assert text_of(encrypted(""), "x", "", quiet) == "The mill\n\f"
    with pytest.raises(DocumentRefused, match=r"^x is encrypted: `qpdf --decrypt"):
        text_of(encrypted("secret"), "x")


def bomb() -> str:
    """The XML of a Word file that unpacks to more than what is read."""
    return "<w:p/>" * (MOST_MARKUP // 6 + 100)


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "scan": (lambda: made.pdf("", ""), "has 2 pages and no text, as scans have: `ocrmypdf"),
    "no page": (made.pdf, "has 0 pages and no text"),
    "cut PDF": (lambda: b"%PDF-1.7\n%\xe2\xe3\n", "is damaged: it begins as a PDF file"),
    "cut Word file": (lambda: made.word("a" * 999)[:-60], "is damaged: it begins as a Word file"),
    "Word file of nothing": (made.word, "is a Word file without any text"),
    "bomb": (lambda: made.word(extra=bomb()), "unpacks to more than the 67,108,864 bytes"),
    "book without a package": (
        lambda: made.zipped({"mimetype": "application/epub+zip"}),
        "is damaged: it begins as an EPUB book",
    ),
    "protected book": (lambda: made.epub("a", locked=True), "is an EPUB book with copy protection"),
    "empty page": (lambda: b"<p> <script>x</script>", "is an HTML page without any text"),
    "picture": (lambda: b"\x89PNG\r\n\x1a\n\0", "holds binary data"),
    "zip": (lambda: made.zipped({"a.txt": "a"}), "is a zip file, expected a text"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_told_in_one_line(name: str) -> None:
    make, expected = BAD[name]
    with pytest.raises(InputRefused) as refused:
        text_of(make(), "the file", ".html" if "page" in name else "")
    line = message_of(refused.value)
    assert line.startswith(f"the file {expected}") and "\n" not in line and len(line) < 300


def test_pages_without_text_are_told_of() -> None:
    told: list[str] = []
    assert text_of(made.pdf("a", "", "b"), "x", "", told.append) == "a\n\f\n\fb\n\f"
    assert told == ["x: 1 of 3 pages have no text, the first of them page 2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "papers"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "two.pdf").write_bytes(made.pdf("two"))
    (folder / "b" / "scan.pdf").write_bytes(made.pdf(""))
    (folder / "a.md").write_text(PLAIN)
    (folder / "c.png").write_bytes(b"\x89PNG\0")
    (folder / ".hidden").write_text("hidden")
    (folder / "up").symlink_to(tmp_path)
    (folder / "link.md").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    return folder


def test_a_folder_is_read_in_order_and_what_is_left_out_is_named_once(folder: Path) -> None:
    told: list[str] = []
    assert documents_in([folder], told.append) == [
        Document(folder / "a.md", "papers/a.md", PLAIN),
        Document(folder / "b" / "two.pdf", "papers/b/two.pdf", "two\n\f"),
    ]
    assert told == [
        f"{folder}: read 2 files, left out 4 without a text that kvarn reads: b/scan.pdf, c.png, "
        "link.md (a link), up (a link); -f FILE says of one why"
    ]


def test_several_documents_stand_below_their_names(tmp_path: Path, folder: Path) -> None:
    one = tmp_path / "one.txt"
    one.write_text("The mill")
    documents = documents_in([one, folder / "b" / "two.pdf"], quiet)
    assert joined(documents[:1]) == "The mill"
    assert joined(documents) == "==> one.txt <==\nThe mill\n==> two.pdf <==\ntwo\n\f"


def test_folders_without_documents_and_texts_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DocumentRefused, match="is a folder without texts"):
        documents_in([tmp_path], quiet)
    for name in "ab":
        (tmp_path / name).write_text("The mill")
    monkeypatch.setattr("kvarn.runtime.documents.files.MOST_TEXT", 15)
    with pytest.raises(DocumentRefused, match=r"more than the 15 characters .* up to .*/b: give"):
        documents_in([tmp_path], quiet)
    with pytest.raises(InputRefused, match="more than the 4 bytes"):
        read_document(tmp_path / "a", 4)
    with pytest.raises(KvarnError, match="expected a text file or a pipe"):
        read_document(tmp_path)
