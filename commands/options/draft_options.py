"""Options of drafts: `--draft`, by repetitions or by a smaller model, and what belongs to it.
Imports nothing that computes."""

from __future__ import annotations

import argparse
from typing import Any

from ...runtime.draft import DraftModel, Ngram
from ...runtime.draft.base import LIMITS, WORDS
from ...system.values import count
from .values import argument_type, number, utf8

# Flag, its kind and letter, what it does.
_OPTIONS: tuple[tuple[str, Any, str, str], ...] = (
    (
        "--draft-max",
        argument_type(count, *LIMITS["max_tokens"]),
        "N",
        f"at most N tokens in a draft (default {Ngram.max_tokens}; of a model "
        f"{DraftModel.max_tokens})",
    ),
    (
        "--draft-min-match",
        argument_type(count, *LIMITS["min_match"]),
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


def add_draft_options(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Adds `--draft` and what belongs to it. when: what the group's help begins with."""
    group = parser.add_argument_group(
        "drafting", f"{when}guess tokens and verify them in one pass: the same text, sooner"
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


def draft_words(options: argparse.Namespace) -> dict[str, Any]:
    """What was given of `--draft` and what belongs to it, by the words of `DraftRequest`."""
    words = vars(options)
    return {word: words[word] for word in WORDS if words[word] is not None}
