"""`kvarn imatrix`: which columns of a model's matrices a text needs most."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...system.terminal import say
from ..opening import Workload, load_model
from ..options.files import add_files_option, add_piece_options, check_output, documents_from
from ..options.model import ModelRequest
from ..options.model_options import add_model_options
from ..terminal.interrupt import Interruptible
from ..terminal.progress import progress_bar


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read texts in pieces of --ctx tokens and write the mean squares of the inputs "
        "of every matrix, in llama.cpp's format. Ctrl-C saves what has been measured."
    )
    add_files_option(parser, help="texts like those that the model will read")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the file to write"
    )
    add_piece_options(parser)
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from ...convert.quantize.observe import Observer

    source = ModelRequest.of(options)
    check_output(options.output, source.path, *options.files)
    text = "".join(document.text for document in documents_from(options))
    model = load_model(source, Workload())
    ids = model.tokenizer.encode(text, bos=model.tokenizer.add_bos)
    observer = Observer(model, options.ctx)
    with (
        Interruptible(rises=False) as interrupt,
        progress_bar("reading", "piece", delay=0) as progress,
    ):
        for done, total in observer.read(ids, options.chunks):
            progress(done, total)
            if interrupt.asked:
                break
    observer.save(options.output, [str(file) for file in options.files])
    unseen, n = observer.unseen
    if unseen:
        say(
            f"{unseen:,} of {n:,} matrices of experts had no token: their columns count alike, as "
            "in llama.cpp; a longer text reaches more"
        )
    stopped = f"stopped, saved after {done} of {total}" if interrupt.asked else f"{done}"
    say(f"{options.output}: {stopped} pieces of {options.ctx} tokens")
    return 130 if interrupt.asked else 0
