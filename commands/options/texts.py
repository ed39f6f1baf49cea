"""Options of commands that read texts from files, whole or in pieces."""

import argparse
from pathlib import Path

from ...system.errors import KvarnError
from ...system.reading import MOST_TEXT, STDIN, read_text
from ...system.text_kinds import check_text
from .values import positive


def add_files_option(parser: argparse.ArgumentParser, help: str) -> None:
    """`-f FILE …`, which may be given again; `options.files`."""
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        dest="files",
        type=Path,
        action="extend",
        nargs="+",
        required=True,
        help=help,
    )


def text_from(options: argparse.Namespace) -> bytes:
    """The texts of `add_files_option`, joined: at most `MOST_TEXT` together."""
    parts: list[bytes] = []
    for file in options.files:
        parts.append(text_in(file, MOST_TEXT - sum(map(len, parts))))
    return b"".join(parts)


def text_in(file: Path, limit: int = MOST_TEXT) -> bytes:
    """A text of UTF-8; `InputRefused` where it is none, or longer than `limit` bytes."""
    text = read_text(file, limit)
    check_text(text, _called(file))
    return text


def decoded(data: bytes, file: Path) -> str:
    """A text of UTF-8; `InputRefused` where it is none."""
    check_text(data, _called(file))
    return data.decode("utf-8")


def _called(file: Path) -> str:
    return "the text from stdin" if file == STDIN else str(file)


def prompt_from(file: Path) -> str:
    """The prompt in a file or on stdin. As in llama.cpp without its last line break, which editors
    and `echo` write after any text. Raises `KvarnError` where nothing else is in it."""
    text = decoded(read_text(file), file)
    if not text.strip():
        where = "standard input" if file == STDIN else file
        raise KvarnError(f"the prompt from {where} is empty: expected a text")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def add_piece_options(parser: argparse.ArgumentParser) -> None:
    """`--ctx N`, `--chunks N`."""
    parser.add_argument(
        "-c",
        "--ctx",
        "--ctx-size",
        metavar="N",
        type=positive,
        default=512,
        help="tokens of each piece (default 512)",
    )
    parser.add_argument("--chunks", metavar="N", type=positive, help="use only the first N pieces")
