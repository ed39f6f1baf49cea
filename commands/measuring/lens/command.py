"""`kvarn lens`: what was read of a text, as a page for the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from ....runtime.attend.selections import Selections
from ....runtime.gguf import open_gguf
from ....runtime.loading.default_model import usual_model_path
from ....runtime.loading.fingerprint import fingerprint
from ....runtime.memory import human_bytes
from ....runtime.tokenizer import load_tokenizer
from ....system.errors import KvarnError
from ....system.files import write_file
from ....system.terminal import say
from ...options.files import check_output
from ...options.model import model_file
from ...options.model_options import add_file_flag
from ...options.values import count, positive
from .page import Page, pieces_of, render
from .view import View

SIZE = 32
"""Most MiB of a page, unless told."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make an HTML page of a file that --record-selections wrote. It shows the text, and how "
        "much of each part each layer and KV head read for each generated token. The page is one "
        "file and loads nothing from elsewhere."
    )
    parser.add_argument(
        "selections", metavar="SELECTIONS", type=Path, help="a file of --record-selections"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the page, such as a.html"
    )
    add_file_flag(
        parser, "the GGUF file that was run, for its vocabulary (default: that of `kvarn run`)"
    )
    parser.add_argument(
        "--part",
        metavar="N",
        type=positive,
        help="tokens of a part (default: a power of two from 32 on, so that there are at most "
        "1,024 parts)",
    )
    parser.add_argument(
        "--skip",
        metavar="N",
        type=count,
        default=0,
        help="leave out the first N generated tokens (default 0)",
    )
    parser.add_argument(
        "--size",
        metavar="MIB",
        type=positive,
        default=SIZE,
        help="most MiB of the page (default %(default)s): layers and heads are shown for as many "
        "generated tokens as fit",
    )


def run(options: argparse.Namespace) -> int:
    check_output(options.output, options.selections, options.model)
    selections = Selections.read(options.selections)
    view = View.of(selections, options.part, options.skip)
    notices: list[str] = []
    path = model_file(options.model) if options.model else usual_model_path(notices.append)
    check_output(options.output, path)
    _check_model(options.selections, selections, path)
    for notice in notices:
        say(notice)
    pieces = pieces_of(load_tokenizer(path), view.tokens)
    page = render(view, pieces, options.size << 20)
    write_file(options.output, page.html)
    say(f"{options.output}: {human_bytes(len(page.html))}, {_coverage(page, view)}")
    return 0


def _check_model(file: Path, selections: Selections, path: Path) -> None:
    """`KvarnError` unless the model is the one that was run."""
    source = selections.source
    with open_gguf(path) as model:
        given = fingerprint(model)
    if given != source.fingerprint:
        raise KvarnError(
            f"{file} was recorded with {source.model} (fingerprint {source.fingerprint}): give its "
            f"file with -m FILE, found {path.name} ({given})"
        )


def _coverage(page: Page, view: View) -> str:
    """How much of the recording is on the page."""
    shown = f"{len(view.steps):,} of {view.recorded:,} generated tokens"
    if page.detailed < len(view.steps):
        shown += (
            f", layers and heads of the first {page.detailed:,} of them: --skip N shows later ones,"
            " --size MIB more"
        )
    return shown
