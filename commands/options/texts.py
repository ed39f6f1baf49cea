"""Options of commands that read texts from files, whole or in pieces."""

import argparse
from pathlib import Path

from ...system.errors import KvarnError
from ...system.reading import MOST_TEXT, STDIN, read_text
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
        part = read_text(file, MOST_TEXT - sum(map(len, parts)))
        if part.startswith(b"GGUF"):
            raise KvarnError(f"{file} is a model, expected a text: give the model before -f, or -m")
        parts.append(part)
    return b"".join(parts)


def decoded(data: bytes, file: Path) -> str:
    """A text of UTF-8; `KvarnError` where it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        source = "stdin" if file == STDIN else file
        raise KvarnError(
            f"the text from {source} is not UTF-8 text: byte {data[error.start]:#04x} at offset "
            f"{error.start}"
        ) from error


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
