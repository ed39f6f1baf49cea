"""Options that few people need: `--help` leaves them out, `--help-all` lists them."""

from __future__ import annotations

import argparse

RARE = frozenset(
    {
        "--display-prompt", "--drop-packs", "--draft-max", "--draft-min-match",
        "--draft-p-min",
        "--frequency-penalty", "--io", "--kv-on", "--logit-bias", "--presence-penalty",
        "--processes", "--record-selections", "--repeat-last-n", "--special", "--stats-json",
        "--typical", "--top-nsigma", "--xtc-probability", "--xtc-threshold", "--dynatemp-range",
        "--dynatemp-exp", "--dry-multiplier", "--dry-base", "--dry-allowed-length",
        "--dry-penalty-last-n", "--dry-sequence-breaker", "--mirostat", "--mirostat-ent",
        "--mirostat-lr", "--adaptive-target", "--adaptive-decay", "--samplers", "--sampler-seq",
        "--ignore-eos",
    }
)  # fmt: skip
"""By one of their flags, in any command; and what `mark_rare` marks."""
USUAL = frozenset({"budget", "keep_budget", "tail"})
"""Of the options of methods, those that people use."""


def mark_rare(action: argparse.Action) -> None:
    """Leave an option out of `--help`."""
    action.rare = True  # type: ignore[attr-defined]


def is_rare(action: argparse.Action) -> bool:
    return getattr(action, "rare", False) or not RARE.isdisjoint(action.option_strings)
