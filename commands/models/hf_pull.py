"""`kvarn hf-pull`: a model from a hub to this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...system.terminal import show_path
from ..options.model import pull_repository


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Download a model: weights to convert (safetensors), or a ready GGUF file, by default the "
        "largest that suits this machine's memory, or an adapter. Print its path. Files that are "
        "already here are not downloaded again. Tokens, caches and offline mode are those of "
        "huggingface_hub (HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT)."
    )
    parser.add_argument(
        "repo",
        metavar="REPO",
        help="ORGANISATION/MODEL, its page's address, or ORGANISATION/MODEL:Q4_K_M",
    )
    parser.add_argument(
        "--revision", metavar="R", default="main", help="a branch, tag or commit (default main)"
    )
    parser.add_argument("--file", metavar="F", help="the GGUF file: name, type (Q4_K_M) or pattern")
    parser.add_argument(
        "--include", metavar="GLOB", nargs="+", default=[], help="only files whose names match"
    )
    parser.add_argument(
        "--exclude", metavar="GLOB", nargs="+", default=[], help="no files whose names match"
    )
    parser.add_argument(
        "--to", metavar="DIR", type=Path, help="a folder for the files (default: the hub's cache)"
    )


def run(options: argparse.Namespace) -> int:
    pulled = pull_repository(
        options.repo,
        revision=options.revision,
        file=options.file,
        include=options.include,
        exclude=options.exclude,
        to=options.to,
    )
    show_path(pulled.model or pulled.folder)
    return 0
