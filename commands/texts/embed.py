"""`kvarn embed`: vectors of texts, or texts by their likeness to a query."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.embedding import POOLINGS
from ...system.errors import WrongUsage
from ...system.files import check_target, write_file
from ...system.terminal import say, show
from ..options.values import utf8
from .embedding import add_embedding_options, embedder_of, show_scores, texts_of, words_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..parsing.parser import Parser


def add(parser: Parser) -> None:
    parser.description = (
        "Turn each text into a vector of length 1, and write them as JSON lines, as a NumPy file, "
        "or as the texts by their likeness to a query. MODEL is a text encoder (bert, nomic-bert, "
        "modern-bert, gemma-embedding), or, with --pooling, any other model."
    )
    parser.gathers = True
    add_embedding_options(parser, "MODEL TEXT", "a GGUF file, then texts")
    parser.add_argument(
        "--pooling",
        choices=[name for name in POOLINGS if name != "rank"],
        help="how the tokens of a text make one vector (default: as the file says)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o", "--out", metavar="FILE.npy", type=Path, help="write a NumPy file, float32 (texts, n)"
    )
    form.add_argument(
        "--query",
        metavar="TEXT",
        type=utf8,
        help="print the cosine of each text with this one, the most alike first",
    )


def run(options: argparse.Namespace) -> int:
    texts = texts_of(options, words_of(options))
    if options.query is not None and not options.query.strip():
        raise WrongUsage("--query is empty: expected a text")
    if options.out is not None:
        if options.out.suffix.lower() != ".npy":
            raise WrongUsage(f"-o {options.out}: expected a NumPy file, whose name ends in .npy")
        check_target(options.out)
    embedder = embedder_of(options, options.pooling)
    asked = texts if options.query is None else [*texts, options.query]
    vectors = embedder.embed(asked, truncate=options.truncate)
    if options.out is not None:
        write_file(options.out, _npy(vectors))
        say(f"{options.out}: {len(vectors):,} vectors of {vectors.shape[1]:,} numbers")
    elif options.query is not None:
        show_scores(texts, vectors[:-1] @ vectors[-1])
    else:
        for text, vector in zip(texts, vectors):
            show(json.dumps({"text": text, "embedding": [float(f"{x:.9g}") for x in vector]}))
    return 0


def _npy(vectors: NDArray[np.float32]) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, vectors, allow_pickle=False)
    return file.getvalue()
