"""Files that commands read texts from, and files that they write."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.documents import Document, documents_in, joined
from ...system.errors import KvarnError, WrongUsage
from ...system.files import check_target
from ...system.reading import MOST_TEXT, STDIN, read_text
from ...system.terminal import say
from ...system.text_kinds import check_text
from .model_options import add_ctx_option
from .values import positive

if TYPE_CHECKING:
    from ...runtime.attend import Attend


def add_files_option(parser: argparse._ActionsContainer, help: str, required: bool = True) -> None:
    """`-f FILE …`, which may be given again; `options.files`."""
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        dest="files",
        type=Path,
        action="extend",
        nargs="+",
        required=required,
        default=[],
        help=help,
    )


def add_list_option(parser: argparse._ActionsContainer) -> None:
    """`--files-from LIST`, as tar and rsync have it."""
    parser.add_argument(
        "--files-from",
        metavar="LIST",
        type=Path,
        help="a file with the names of files, a line each, or ended by NULs (find -print0); - is "
        "standard input",
    )


def listed(file: Path) -> list[Path]:
    """The paths that a list names. Raises `KvarnError` for a list without names."""
    data = read_text(file)
    names = data.split(b"\0" if b"\0" in data else b"\n")
    paths = [Path(os.fsdecode(name)) for name in names if name.strip()]
    if not paths:
        raise KvarnError(f"--files-from {file}: no names in it, expected one a line")
    return paths


def add_piece_options(parser: argparse.ArgumentParser) -> None:
    """`--ctx N`, `--chunks N`."""
    add_ctx_option(parser, "tokens of each piece (default 512)", positive, 512)
    parser.add_argument("--chunks", metavar="N", type=positive, help="use only the first N pieces")


def add_prompt_files_option(parser: argparse._ActionsContainer, help: str) -> None:
    """`-f FILE`, one at a time, as a model may be named behind it; `options.files` or None."""
    parser.add_argument(
        "-f", "--file", metavar="FILE", dest="files", type=Path, action="append", help=help
    )


def documents_from(options: argparse.Namespace) -> list[Document]:
    """The documents of `options.files`: see `documents_in`. Lines tell of what is left out."""
    return documents_in(options.files, say)


def text_in(file: Path, limit: int = MOST_TEXT) -> bytes:
    """A text of UTF-8; `InputRefused` where it is none, or longer than `limit` bytes."""
    text = read_text(file, limit)
    check_text(text, "the text from stdin" if file == STDIN else str(file))
    return text


def prompt_from(options: argparse.Namespace) -> str:
    """The prompt in `options.files`. As in llama.cpp without its last line break, which editors
    and `echo` write after any text. Raises `KvarnError` where nothing else is in it."""
    documents = documents_from(options)
    if not any(document.text.strip() for document in documents):
        names = ("standard input" if file == STDIN else str(file) for file in options.files)
        raise KvarnError(f"the prompt from {', '.join(names)} is empty: expected a text")
    text = joined(documents)
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuses, before hours of work, an output file that could not be written after them:
    `FileRefused` where `path` cannot name a file, `KvarnError` where it is one of the inputs."""
    if path is None:
        return
    check_target(path)
    for source in inputs:
        if source is not None and source.exists() and path.exists() and path.samefile(source):
            raise KvarnError(f"{path} is a file to read from: write to another one")


def check_recording(path: Path | None, attend: Attend, *inputs: Path | None) -> None:
    """Refuses `--record-selections` before anything is read where nothing is selected, or the file
    cannot be written."""
    if path is not None and not attend.selects:
        raise WrongUsage(
            f"--record-selections has nothing to record: --method {attend.name} attends to all "
            "tokens"
        )
    check_output(path, *inputs)
