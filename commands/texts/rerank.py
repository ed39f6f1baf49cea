"""`kvarn rerank`: texts by how well they answer a query, as a reranker's classifier says."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...system.errors import WrongUsage
from .embedding import add_embedding_options, embedder_of, show_scores, texts_of, words_of

if TYPE_CHECKING:
    from ..parsing.parser import Parser


def add(parser: Parser) -> None:
    parser.description = (
        "Print the score of each text for the query, a tab and the text, the highest first. MODEL "
        "is a reranker: a model with a classifier, which reads query and text together."
    )
    parser.gathers = True
    add_embedding_options(parser, "MODEL QUERY TEXT", "a GGUF file, a query, then texts")


def run(options: argparse.Namespace) -> int:
    words = words_of(options)
    if not words:
        raise WrongUsage("no query is given: expected MODEL, QUERY, then texts")
    query, *rest = words
    texts = texts_of(options, rest)
    embedder = embedder_of(options, "rank")
    show_scores(texts, embedder.rank(query, texts, truncate=options.truncate))
    return 0
