"""Files and folders that the user names, as documents in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...system.reading import MOST_TEXT, STDIN, InputRefused, check_stdin_once
from .kinds import DocumentRefused, Notice, read_document

_NAMED = 5
"""Files that a note about a folder names; of others it gives the number."""


@dataclass(frozen=True)
class Document:
    """A text, the file it came from, and the name that stands over it where there are several."""

    path: Path
    name: str
    text: str


def documents_in(paths: Iterable[Path], notice: Notice) -> list[Document]:
    """The documents in files and folders, `MOST_TEXT` characters at most.

    Of a folder, all documents below it, in the order of their names, but no hidden ones, and
    nothing that a link leads to; notice: called with a line about those that are left out, and with
    one about each empty file among `paths` where not all is empty. Raises what `read_document`
    raises, and `DocumentRefused` for a folder without documents.
    """
    documents: list[Document] = []
    empty: list[str] = []
    room, paths = MOST_TEXT, list(paths)
    check_stdin_once(paths)
    for path in paths:
        for document in (
            _folder_documents(path, notice) if path.is_dir() else [_document(path, notice)]
        ):
            documents.append(document)
            if document.path == path and not document.text.strip():
                empty.append(document.name)
            room -= len(document.text)
            if room < 0:
                raise DocumentRefused(
                    f"the files hold more than the {MOST_TEXT:,} characters that are read at once, "
                    f"up to {document.name}: give fewer"
                )
    if any(document.text.strip() for document in documents):
        for name in empty:
            notice(f"{name} is empty")
    return documents


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Files, and all below folders, in the order of their names, but no hidden ones, and nothing
    that a link leads to. What is in them is not looked at."""
    files: list[Path] = []
    for path in paths:
        below = _files_below(path) if path.is_dir() else [path]
        files += [file for file in below if file == path or not file.is_symlink()]
    return files


def joined(documents: list[Document]) -> str:
    """One text: of several documents, each below its name, as `head` writes them."""
    if len(documents) == 1:
        return documents[0].text
    return "\n".join(f"{heading(one.name)}\n{one.text}" for one in documents)


def heading(name: str) -> str:
    """The line over a document among others."""
    return f"==> {name} <=="


def _document(path: Path, notice: Notice) -> Document:
    return Document(
        path, "stdin" if path == STDIN else path.name, read_document(path, notice=notice)
    )


def _folder_documents(folder: Path, notice: Notice) -> Iterator[Document]:
    left_out: list[str] = []
    n = 0
    for path in _files_below(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            left_out.append(f"{name} (a link)" if path.is_symlink() else name)
            continue
        try:
            text = read_document(path, notice=notice)
        except InputRefused:
            left_out.append(name)
            continue
        n += 1
        yield Document(path, f"{folder.resolve().name}/{name}", text)
    if left_out:
        more = len(left_out) - _NAMED
        names = ", ".join(left_out[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        notice(
            f"{folder}: read {n:,} files, left out {len(left_out):,} without a text that kvarn "
            f"reads: {names}; -f FILE says of one why"
        )
    if not n:
        raise DocumentRefused(f"{folder} is a folder without texts or documents: name another one")


def _files_below(folder: Path) -> Iterator[Path]:
    """All files, and links, below a folder that are not hidden, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.name[0] == ".":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path)
        else:
            yield path
