"""`kvarn hf-pull`: a model from a hub to this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..runtime.home import remember_model, remember_pull
from ..system.terminal import show_path
from .notices import notice
from .progress import byte_bar


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Pull a model: weights to convert (safetensors), or a ready GGUF file, the "
        "largest quantisation that suits this machine's memory. Prints where it is. Files that are "
        "there already are not pulled again. Tokens, caches and offline mode are those of "
        "huggingface_hub (HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT)."
    )
    parser.add_argument("repo", metavar="REPO", help="ORGANISATION/MODEL, or its page's address")
    parser.add_argument(
        "--revision", metavar="R", default="main", help="a branch, tag or commit (default main)"
    )
    parser.add_argument("--file", metavar="F", help="the GGUF file, or its type, as Q4_K_M")
    parser.add_argument(
        "--include", metavar="GLOB", nargs="+", default=[], help="only files with such names"
    )
    parser.add_argument(
        "--exclude", metavar="GLOB", nargs="+", default=[], help="all files but those"
    )
    parser.add_argument(
        "--to", metavar="DIR", type=Path, help="a folder for the files (default: the hub's cache)"
    )


def run(options: argparse.Namespace) -> int:
    import logging

    import huggingface_hub.utils.logging  # noqa: F401 (gives its logger a handler of its own)

    from ..convert.hub import pull

    logger = logging.getLogger("huggingface_hub")
    logger.setLevel(logging.ERROR)  # warnings are told in words
    logger.handlers.clear()  # names of the hub's take kvarn's way to the terminal
    logger.propagate = True

    pulled = pull(
        options.repo,
        revision=options.revision,
        include=options.include,
        exclude=options.exclude,
        file=options.file,
        to=options.to,
        notice=notice,
        progress=byte_bar,
    )
    remember_pull(pulled.repo, pulled.model or pulled.folder)
    if pulled.model is not None:
        remember_model(pulled.model)
    show_path(pulled.model or pulled.folder)
    return 0
