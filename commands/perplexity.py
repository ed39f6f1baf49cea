"""`kvarn perplexity`: how well a model predicts a text, by llama.cpp's definition."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..runtime.methods import called
from ..runtime.perplexity import perplexity
from ..runtime.prefill import Exact
from ..system.errors import KvarnError
from ..system.terminal import say, show
from .opening import Workload, load_model
from .options.context import add_kv_type_option, add_prefill_options, request_from
from .options.files import add_piece_options, text_in
from .options.model import ModelRequest, add_model_options


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Cut the text into pieces of --ctx tokens, and read each in an empty context. The "
        "perplexity is exp of the mean of −log p over the second halves of the pieces."
    )
    parser.add_argument("-f", "--file", metavar="FILE", type=Path, required=True, help="the text")
    add_piece_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    add_model_options(parser, with_device=True)
    add_kv_type_option(parser)
    add_prefill_options(parser)


def run(options: argparse.Namespace) -> int:
    source, request = ModelRequest.of(options), request_from(options)
    store, prefill = request.store, request.prefill or Exact()
    text = text_in(options.file)
    model = load_model(source, Workload(store.types(), prefills=[prefill]))
    result = None
    for result in perplexity(model, text, options.ctx, options.chunks, store, prefill):
        say(f"[{result.n_chunks}/{result.all_chunks}] {result.value:.4f}")
    if result is None:
        raise KvarnError(f"{options.file}: too short for a piece of {options.ctx} tokens")
    if options.json:
        show(
            json.dumps(
                {
                    "perplexity": result.value,
                    "error": result.error,
                    "n_tokens": result.n_tokens,
                    "n_chunks": result.n_chunks,
                    "n_ctx": options.ctx,
                    "prefill": called(prefill),
                    "model": str(model.path),
                }
            )
        )
    else:
        show(f"perplexity {result.value:.4f} ± {result.error:.4f} ({result.n_tokens} tokens)")
    return 0
