"""What is no text is recognised by its bytes; the files are made by Python's own libraries."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.system.reading import InputRefused
from kvarn.system.text_kinds import check_kind, check_text

TEXT = "Über den Fluß, über die Brücke.\n" * 9
MARKUP = ["<!doctype html><p>x", "{\\rtf1 x}", "#!/bin/sh\n", "\ufeffx", "", "a\0b" * 9]
NAMES = ["GGUF is a format", "BZh", "%PDF-x"]


def zipped(*names: str) -> bytes:
    """A zip file; a name with a `=` is stored with what follows it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            member, _, content = name.partition("=")
            archive.writestr(member, content)
    return data.getvalue()


def tarred() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return data.getvalue()


KINDS = {
    b"GGUF\3\0\0\0": "is a model, expected a text: give the model before -f, or -m",
    b"%PDF-1.7\n%\xe2\xe3": "is a PDF file, expected a text: `pdftotext FILE OUT.txt` makes one",
    zipped("mimetype=application/epub+zip", "a.html=<p>"): "is an EPUB book, expected a text: `pa",
    zipped("mimetype=application/vnd.oasis.opendocument.text"): "is an OpenDocument file",
    zipped("[Content_Types].xml", "word/document.xml"): "is a Word file, expected a text: `pandoc",
    zipped("a.txt=a"): "is a zip file, expected a text: unpack it",
    gzip.compress(b"a"): "is a gzip file, expected a text: unpack it with `gunzip -c FILE > OUT.tx",
    bz2.compress(b"a"): "is a bzip2 file",
    lzma.compress(b"a"): "is an xz file",
    tarred(): "is a tar archive",
    bytes(60) + b"BOOKMOBI": "is a Kindle book",
    TEXT.encode("utf-16"): "is UTF-16 text, expected UTF-8: `iconv -f utf-16 -t utf-8 FILE > OUT",
    TEXT.encode("utf-16-le"): "is UTF-16LE text",
    TEXT.encode("utf-16-be"): "is UTF-16BE text",
    TEXT.encode("utf-32"): "is UTF-32 text",
}


@pytest.mark.parametrize("data", KINDS, ids=range(len(KINDS)))
def test_each_kind_says_how_to_make_a_text_of_it(data: bytes) -> None:
    for check in (check_text, check_kind):
        with pytest.raises(InputRefused) as refused:
            check(data, "book")
        assert str(refused.value).startswith(f"book {KINDS[data]}")


def test_other_encodings_and_binary_data_are_refused_as_text() -> None:
    latin = "caf\xe9".encode("latin1")
    with pytest.raises(InputRefused, match="not UTF-8 text: byte 0xe9 at offset 3; `iconv -f la"):
        check_text(latin, "book")
    with pytest.raises(InputRefused, match="book holds binary data"):
        check_text(b"\x7fELF\2\1\1\0\0\xff", "book")
    check_kind(latin, "book")


@pytest.mark.skipif(shutil.which("iconv") is None, reason="needs iconv")
@pytest.mark.parametrize("encoding", ["latin1", "utf-16", "utf-16le", "utf-16be", "utf-32"])
def test_iconv_does_what_is_advised(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "FILE"
    path.write_bytes(TEXT.encode(encoding))
    with pytest.raises(InputRefused) as refused:
        check_text(path.read_bytes(), "book")
    advised = str(refused.value).split("`")[1]
    subprocess.run(["sh", "-c", advised], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "OUT.txt").read_text("utf-8") == TEXT


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_texts_pass(text: str) -> None:
    check_text(text.encode(), "book")


def test_markup_and_scripts_are_texts() -> None:
    for text in (*MARKUP, *NAMES):
        check_text(text.encode(), "book")
