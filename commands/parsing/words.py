"""The words of a command line: their order, the names of options, and what was meant by others."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
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


def flag_in(word: str, names: list[str]) -> str:
    """Which of an option's names a word begins with, a value behind it or not; "" for none."""
    flag = word.partition("=")[0]
    short = word[:2]  # -n8
    return flag if flag in names else short if short in names and short != "--" else ""


def short_name(name: str) -> str:
    """The best known name of an option, by argparse's name of it: -c/--ctx/--ctx-size → --ctx."""
    first, *others = name.split("/") if name.startswith("-") else [name]
    return others[0] if others and len(first) == 2 else first


_SYNONYMS = {"gpu": "cuda"}
"""Other words for values, which are spelt like wrong ones."""


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """`: did you mean …?` where one means `word` or is like it; least: how like, from 0 to 1."""
    from difflib import get_close_matches

    known = list(known)
    same = _SYNONYMS.get(word.lower())
    matches = [same] if same in known else get_close_matches(word[:100], known, 1, least)
    return f": did you mean {matches[0]}?" if matches else ""


def nearest_option(flag: str, known: Iterable[str]) -> str:
    """The same for options: one that is spelt with other dashes, or else a long one."""
    name = flag.replace("_", "-").lstrip("-")
    same = [option for option in known if option.lstrip("-") == name]
    return nearest(same[0] if same else flag, same or [o for o in known if len(o) > 2], 0.7)
