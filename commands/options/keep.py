"""Options that say which tokens stay, shared by the commands that open a context."""

from __future__ import annotations

import argparse

from ...runtime.keep import KEEPS, Keep, KeepError, parse_budget
from ...system.text import shown
from .methods import Axis


def keep_budget(text: str) -> str:
    """An argparse type: a number of tokens from 1 on, or a share up to "100%"."""
    try:
        parse_budget(text)
    except KeepError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def keep_method(text: str) -> str:
    """An argparse type: the name of a method; in llama.cpp, a number stands there."""
    if text.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(
            f"found {shown(text)}, expected {', '.join(KEEPS)}: `--keep streaming` always keeps "
            "the first 4 tokens"
        )
    return text


KEEP_AXIS: Axis[Keep] = Axis(
    "keep",
    "--keep",
    KEEPS,
    "all",
    prefix="keep-",
    checks={"budget": keep_budget},
    named_by=keep_method,
)


def add_keep_options(group: argparse._ActionsContainer) -> None:
    """Adds `--keep` and what the methods know."""
    KEEP_AXIS.add(group, "which tokens stay in the KV cache")


def keep_from(options: argparse.Namespace) -> Keep:
    """The keep method that the options name."""
    return KEEP_AXIS.chosen(options)
