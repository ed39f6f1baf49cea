"""Options that say how long an answer may be and what goes before it, named as in llama.cpp."""

import argparse

from .values import limit, utf8


def add_max_tokens_option(parser: argparse.ArgumentParser, default: int, help: str) -> None:
    """Adds `-n`; -1 is no limit."""
    parser.add_argument(
        "-n",
        "--max-tokens",
        "--n-predict",
        "--predict",
        metavar="N",
        type=limit,
        default=default,
        help=help,
    )


def add_system_option(parser: argparse.ArgumentParser, help: str) -> None:
    """Adds `-sys`."""
    parser.add_argument("-sys", "--system", "--system-prompt", metavar="TEXT", type=utf8, help=help)
