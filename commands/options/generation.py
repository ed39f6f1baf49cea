"""Options of commands that generate text, named as in llama.cpp: length and sampling."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ...runtime.sampling import Sampler, SamplingError
from ...runtime.sampling.order import DEFAULT_ORDER, samplers_lettered, samplers_named
from ...system.text import shown
from ...system.values import LARGEST, count
from .constraints import add_constraint_options, constraint_from
from .values import LARGEST_SEED, argument_type, limit, utf8

_BIAS = re.compile(r"(\d+)([+-].+)")

# Field of `Sampler`, its flags, the letter that stands for its value, what it does.
_SAMPLING: tuple[tuple[str, str, str, str], ...] = (
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
    ("top_n_sigma", "--top-nsigma --top-n-sigma", "N", "only logits within N deviations, -1 = off"),
    ("xtc_probability", "--xtc-probability", "P", "how often XTC removes the best, 0 = never"),
    ("xtc_threshold", "--xtc-threshold", "P", "of tokens at least so likely, XTC leaves the last"),
    ("dynatemp_range", "--dynatemp-range", "T", "temperature by entropy, up to T from --temp"),
    ("dynatemp_exponent", "--dynatemp-exp", "E", "entropy's power in it"),
    ("dry_multiplier", "--dry-multiplier", "M", "penalty for going on with a repetition, 0 = off"),
    ("dry_base", "--dry-base", "B", "it grows by B with each repeated token"),
    ("dry_allowed_length", "--dry-allowed-length", "N", "repeated tokens that are allowed"),
    ("dry_penalty_last_n", "--dry-penalty-last-n", "N", "how many tokens DRY sees, -1 = all"),
    ("mirostat", "--mirostat", "V", "Mirostat 1 or 2 instead of all but --temp, 0 = off"),
    ("mirostat_tau", "--mirostat-ent", "H", "its target of surprise, in bits"),
    ("mirostat_eta", "--mirostat-lr", "R", "its learning rate"),
    ("adaptive_target", "--adaptive-target", "P", "prefer tokens near P (sampler adaptive_p)"),
    ("adaptive_decay", "--adaptive-decay", "D", "how long adaptive_p remembers, up to 0.99"),
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


def add_sampling_options(parser: argparse.ArgumentParser, **defaults: float) -> None:
    """Adds `--temp` … `--seed`, `--stop` and what an answer must match to `parser`. What is neither
    given nor among the command's `defaults` is None: the model's file may say it, or else
    `Sampler`'s defaults hold."""
    group = parser.add_argument_group(
        "sampling", "how the next token is chosen; names, defaults and order as in llama.cpp"
    )
    for name, flags, letter, help in _SAMPLING:
        usual = getattr(Sampler, name)
        group.add_argument(
            *flags.split(),
            dest=name,
            type=type(usual),
            default=defaults.get(name),
            metavar=letter,
            help=f"{help} (default {f'{defaults[name]:g}' if name in defaults else usual})",
        )
    _add_order(group)
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
        type=argument_type(partial(count, units=False), -1, LARGEST_SEED),
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


def _add_order(group: argparse._ArgumentGroup) -> None:
    """Adds which samplers there are, in which order, and what they never draw."""
    group.add_argument(
        "--dry-sequence-breaker",
        dest="dry_sequence_breakers",
        type=utf8,
        action="append",
        metavar="TEXT",
        help='a text that ends repetitions, instead of line break, : " and *; may be repeated; '
        "none: there is none",
    )
    group.add_argument(
        "--samplers",
        type=partial(_checked, samplers_named),
        metavar="NAMES",
        help="the samplers in their order (default "
        f"'{';'.join(DEFAULT_ORDER)}'); adaptive_p draws, wherever it stands",
    )
    group.add_argument(
        "--sampler-seq",
        "--sampling-seq",
        dest="samplers",
        type=partial(_checked, samplers_lettered),
        metavar="LETTERS",
        help="the same in letters (default edskypmxt, a is adaptive_p)",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_const",
        const=True,
        help="go on where the model would end: forbids the tokens that end generation",
    )


def sampling_from(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `Sampler` that the user gave; raises `SamplingError` for a bad range, and for
    a constraint that cannot be used."""
    sampling = {name: getattr(options, name) for name, *_ in _SAMPLING}
    breakers = options.dry_sequence_breakers
    sampling |= {
        "samplers": options.samplers,
        "ignore_eos": options.ignore_eos,
        "dry_sequence_breakers": None if breakers is None else _after_none(breakers),
        "logit_bias": dict(options.logit_bias) if options.logit_bias else None,
        "seed": None if options.seed == -1 else options.seed,
        "constraint": constraint_from(options),
    }
    sampling = {name: value for name, value in sampling.items() if value is not None}
    Sampler(**sampling)
    return sampling


def _after_none(texts: list[str]) -> list[str]:
    """The texts after the last "none", which removes the ones before it."""
    n_after = [*reversed(texts), "none"].index("none")
    return texts[len(texts) - n_after :]


def _checked(read: Callable[[str], tuple[str, ...]], text: str) -> tuple[str, ...]:
    try:
        return read(text)
    except SamplingError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("sampling: ")) from None


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
