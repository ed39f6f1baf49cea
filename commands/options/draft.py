"""Options of drafting, shared by the commands that generate."""

from __future__ import annotations

import argparse

from ...runtime.draft import DRAFTS, Draft, Ngram
from ...system.errors import KvarnError
from .values import positive

# Field of the draft, its flag, what it does.
_FIELDS = (
    ("max_tokens", "--draft-max", "at most N tokens a draft"),
    ("min_match", "--draft-min-match", "as few as N tokens count as a repetition"),
)


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--draft` and what belongs to it to `parser`; defaults are those of `Ngram`."""
    group = parser.add_argument_group(
        "drafting", "guess tokens and verify them in one pass: faster where text repeats"
    )
    group.add_argument(
        "--draft",
        choices=sorted(DRAFTS),
        help="ngram: what followed the last tokens before in the context (default: no drafts)",
    )
    for name, flag, what in _FIELDS:
        group.add_argument(
            flag,
            dest=f"draft_{name}",
            metavar="N",
            type=positive,
            help=f"{what} (default {getattr(Ngram, name)})",
        )


def draft_from(options: argparse.Namespace) -> Draft | None:
    """The draft that parsed options ask for; `KvarnError` for options without effect."""
    values = {name: getattr(options, f"draft_{name}") for name, *_ in _FIELDS}
    given = {name: value for name, value in values.items() if value is not None}
    if options.draft is not None:
        return DRAFTS[options.draft](**given)
    for name, flag, _ in _FIELDS:
        if name in given:
            raise KvarnError(f"{flag} {given[name]} has no effect without --draft ngram")
    return None
