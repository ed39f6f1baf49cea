"""Options of commands that read texts from files, whole or in pieces."""

import argparse
from pathlib import Path

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
    """The files of `add_files_option`, one after the other."""
    return b"".join(file.read_bytes() for file in options.files)


def add_piece_options(parser: argparse.ArgumentParser) -> None:
    """`--ctx N`, `--chunks N`."""
    parser.add_argument(
        "-c",
        "--ctx",
        metavar="N",
        type=positive,
        default=512,
        help="tokens of each piece (default 512)",
    )
    parser.add_argument("--chunks", metavar="N", type=positive, help="use only the first N pieces")
