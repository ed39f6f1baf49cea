"""Options of drafts: `--draft`, by repetitions or by a smaller model, and what belongs to it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runtime.draft import DraftModel, Ngram
from ...runtime.draft.base import LIMITS
from ...runtime.draft.request import DraftRequest
from ...system.values import count
from .context import flag
from .model import model_file
from .values import number, typed, utf8

# Flag, its kind and letter, what it does.
_OPTIONS: tuple[tuple[str, Any, str, str], ...] = (
    (
        "--draft-max",
        typed(count, *LIMITS["max_tokens"]),
        "N",
        f"at most N tokens in a draft (default {Ngram.max_tokens}; of a model "
        f"{DraftModel.max_tokens})",
    ),
    (
        "--draft-min-match",
        typed(count, *LIMITS["min_match"]),
        "N",
        f"ngram: the fewest tokens that count as a repetition (default {Ngram.min_match})",
    ),
    (
        "--draft-p-min",
        number,
        "P",
        "a model's draft ends where it gives no token a probability of P (default "
        f"{DraftModel.min_probability:g})",
    ),
)


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--draft` and what belongs to it to `parser`."""
    group = parser.add_argument_group(
        "drafting", "guess tokens and verify them in one pass: the same text, sooner"
    )
    group.add_argument(
        "--draft",
        "-md",
        "--model-draft",
        "--draft-model",
        metavar="ngram|FILE",
        type=utf8,
        help="ngram: guess what followed the last tokens earlier in the context; FILE: let a "
        "smaller model of the same vocabulary guess (default: no drafts)",
    )
    for name, kind, letter, help in _OPTIONS:
        group.add_argument(name, metavar=letter, type=kind, help=help)


def draft_from(
    options: argparse.Namespace, find: Callable[[Path], Path] = model_file
) -> DraftRequest | None:
    """The draft that parsed options ask for. find: the file that a model's name means. Raises what
    `DraftRequest.of` raises."""
    return DraftRequest.of(vars(options), flag, find)
