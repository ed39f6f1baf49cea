"""The order of the words of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import islice


def options_first(words: Sequence[str], known: Mapping[str, argparse.Action]) -> list[str]:
    """The words, with those that belong to no option last: argparse takes them only together."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += rest
        elif word[:1] != "-" or word == "-":
            others.append(word)
        else:
            option = known.get(word)
            has_value = option is not None and option.nargs is None
            options += [word, *islice(rest, int(has_value))]
    return [*options, *(["--"] if others else []), *others]
