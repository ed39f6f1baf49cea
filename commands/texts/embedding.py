"""What `kvarn embed` and `kvarn rerank` share: the model, the texts, and how long ones are read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.embedding.loading import load_embedder
from ...system.errors import WrongUsage
from ...system.reading import check_stdin_once
from ...system.terminal import say, show
from ...system.text import one_line, shown
from ..notices import CompilingNotice
from ..options.files import add_prompt_files_option, text_in
from ..options.model import ModelRequest
from ..options.model_options import add_model_flags, add_threads_option
from ..options.values import utf8

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...runtime.embedding import Embedder

SHOWN = 200
"""Characters of a text in a list of scores."""


def add_embedding_options(parser: argparse.ArgumentParser, words: str, help: str) -> None:
    """The words of the command line, `-m`, `-hf`, `-f`, `-t` and `--truncate`."""
    parser.add_argument("words", metavar=words, nargs="*", type=utf8, help=help)
    which = parser.add_mutually_exclusive_group()
    add_model_flags(which, "the model; all words are texts then", "; all words are texts then")
    add_prompt_files_option(
        parser, "texts, one on each line; - is standard input; may be given again"
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="cut texts that are longer than the model reads (default: refuse them)",
    )
    add_threads_option(parser)


def words_of(options: argparse.Namespace) -> list[str]:
    """The words without the model, which becomes `options.model` if no option names it."""
    words: list[str] = list(options.words)
    if options.model is None and options.hf is None:
        if not words:
            raise WrongUsage("no model is named: expected a GGUF file first")
        options.model = Path(words.pop(0))
    return words


def texts_of(options: argparse.Namespace, words: list[str]) -> list[str]:
    """The words, then the lines of files that are not blank. `KvarnError` where there are none."""
    texts = list(words)
    files = options.files or ()
    check_stdin_once(files)
    for file in files:
        lines = text_in(file).decode("utf-8").splitlines()
        texts += [line.strip() for line in lines if line.strip()]
    if not texts:
        first = options.words[:1]
        is_model = first == [str(options.model)]
        hint = f"the first word, {shown(first[0])}, is the MODEL; " if is_model else ""
        raise WrongUsage(f"there are no texts: {hint}expected some on the command line, or -f FILE")
    return texts


def embedder_of(options: argparse.Namespace, pooling: str | None) -> Embedder:
    """The embedder that options name, loaded."""
    from ...jit.kernel_cache import on_compile

    on_compile(CompilingNotice("kernels"))
    request = ModelRequest.of(options)
    return load_embedder(request.file(), pooling=pooling, threads=request.threads, notice=say)


def show_scores(texts: list[str], scores: NDArray[np.float32]) -> None:
    """Print each score, a tab and the text, the highest first."""
    for i in sorted(range(len(texts)), key=lambda i: -scores[i]):
        show(f"{scores[i]:.4f}\t{one_line(texts[i], SHOWN)}")
