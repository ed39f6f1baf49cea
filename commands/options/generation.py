"""Options of commands that generate text, named as in llama.cpp: length, sampling, drafts."""

from __future__ import annotations

import argparse
import re

from ...runtime.draft import DRAFTS, Draft, Ngram
from ...runtime.sampling import Sampler
from ...system.errors import KvarnError
from ...system.text import shown
from ...system.values import LARGEST
from .constraints import add_constraint_options, constraint_from
from .values import limit, positive, utf8

_BIAS = re.compile(r"(\d+)([+-].+)")

# Field of `Sampler`, its flags, the letter that stands for its value, what it does.
_SAMPLING = (
    ("temp", "--temp", "T", "temperature; 0 takes the most likely token"),
    ("top_k", "--top-k", "N", "only the N most likely tokens, 0 = all"),
    ("top_p", "--top-p", "P", "only the most likely tokens whose sum reaches P, 1 = all"),
    ("min_p", "--min-p", "P", "only tokens at least P times as likely as the best, 0 = all"),
    ("typical_p", "--typical --typical-p", "P", "locally typical sampling, 1 = off"),
    ("repeat_penalty", "--repeat-penalty", "R", "divides logits of recent tokens, 1 = off"),
    ("repeat_last_n", "--repeat-last-n", "N", "how many tokens are recent, 0 = none, -1 = all"),
    ("presence_penalty", "--presence-penalty", "A", "subtracted from logits of recent tokens"),
    (
        "frequency_penalty",
        "--frequency-penalty",
        "A",
        "the same, for each time they occurred",
    ),
)
# Field of `Ngram`, its flag, what it does.
_DRAFTING = (
    ("max_tokens", "--draft-max", "at most N tokens in a draft"),
    ("min_match", "--draft-min-match", "the fewest tokens that count as a repetition"),
)


def add_max_tokens_option(parser: argparse.ArgumentParser, default: int | None, help: str) -> None:
    """Adds `-n`; None is no limit, which users write as -1."""
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


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--temp` … `--seed`, `--stop` and what an answer must match to `parser`; defaults are
    those of `Sampler`."""
    group = parser.add_argument_group(
        "sampling", "how the next token is chosen; names, defaults and order as in llama.cpp"
    )
    for name, flags, letter, help in _SAMPLING:
        default = getattr(Sampler, name)
        group.add_argument(
            *flags.split(),
            dest=name,
            type=type(default),
            default=default,
            metavar=letter,
            help=f"{help} (default %(default)s)",
        )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID+BIAS",
        help="add BIAS to a token's logit, as 15043+1 or 15043-1; ID-inf forbids the token; may be "
        "repeated",
    )
    group.add_argument(
        "-s",
        "--seed",
        type=int,
        default=-1,
        metavar="N",
        help="random seed; -1 = a new one for each run (default %(default)s)",
    )
    group.add_argument(
        "--stop",
        type=utf8,
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer where TEXT appears, without printing TEXT; may be repeated",
    )
    add_constraint_options(group)


def sampler_from(options: argparse.Namespace) -> Sampler:
    """The `Sampler` that parsed options ask for; raises `SamplingError` for a bad range, and for a
    constraint that cannot be used."""
    return Sampler(
        **{name: getattr(options, name) for name, *_ in _SAMPLING},
        logit_bias=dict(options.logit_bias or ()),
        seed=None if options.seed == -1 else options.seed,
        constraint=constraint_from(options),
    )


def _bias(text: str) -> tuple[int, float]:
    """`15043+1` → (15043, 1.0)."""
    match = _BIAS.fullmatch(text.strip())
    try:
        if match and len(match[1]) < 20 and int(match[1]) <= LARGEST:
            return int(match[1]), float(match[2])
    except ValueError:
        pass  # a bias that is no number gets the same message as any other wrong form
    raise argparse.ArgumentTypeError(
        f"found {shown(text)}, expected ID+BIAS or ID-BIAS, as 15043-1"
    )


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--draft` and what belongs to it to `parser`; defaults are those of `Ngram`."""
    group = parser.add_argument_group(
        "drafting", "guess tokens and verify them in one pass: faster where text repeats"
    )
    group.add_argument(
        "--draft",
        choices=sorted(DRAFTS),
        help="ngram: guess what followed the last tokens earlier in the context (default: no "
        "drafts)",
    )
    for name, flag, help in _DRAFTING:
        group.add_argument(
            flag,
            dest=f"draft_{name}",
            metavar="N",
            type=positive,
            help=f"{help} (default {getattr(Ngram, name)})",
        )


def draft_from(options: argparse.Namespace) -> Draft | None:
    """The draft that parsed options ask for; `KvarnError` for options without effect."""
    values = {name: getattr(options, f"draft_{name}") for name, *_ in _DRAFTING}
    given = {name: value for name, value in values.items() if value is not None}
    if options.draft is not None:
        return DRAFTS[options.draft](**given)
    for name, flag, _ in _DRAFTING:
        if name in given:
            raise KvarnError(f"{flag} {given[name]} has no effect without --draft ngram")
    return None
