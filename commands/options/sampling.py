"""Options that several commands share: sampling and stop strings, named as in llama.cpp."""

import argparse
import re

from ...runtime.sampling import Sampler
from ...system.text import shown
from ...system.values import LARGEST
from .values import utf8

_BIAS = re.compile(r"(\d+)([+-].+)")


# Field of `Sampler`, its flags, the letter that stands for its value, what it does.
_FIELDS = (
    ("temp", "--temp", "T", "temperature; 0 takes the most likely token"),
    ("top_k", "--top-k", "N", "only the N most likely tokens, 0 = all"),
    ("top_p", "--top-p", "P", "only the most likely tokens up to P in sum, 1 = all"),
    ("min_p", "--min-p", "P", "only tokens at least P times as likely as the best, 0 = all"),
    ("typical_p", "--typical --typical-p", "P", "locally typical sampling, 1 = off"),
    ("repeat_penalty", "--repeat-penalty", "R", "divides logits of recent tokens, 1 = off"),
    ("repeat_last_n", "--repeat-last-n", "N", "how many tokens are recent, 0 = none, -1 = all"),
    ("presence_penalty", "--presence-penalty", "A", "taken once from logits of recent tokens"),
    ("frequency_penalty", "--frequency-penalty", "A", "taken per occurrence from the same"),
)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--temp` … `--seed` and `--stop` to `parser`; defaults are those of `Sampler`."""
    group = parser.add_argument_group(
        "sampling", "how the next token is chosen; names, defaults and order as in llama.cpp"
    )
    for name, flags, letter, what in _FIELDS:
        default = getattr(Sampler, name)
        group.add_argument(
            *flags.split(),
            dest=name,
            type=type(default),
            default=default,
            metavar=letter,
            help=f"{what} (default %(default)s)",
        )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID+BIAS",
        help="adds to a token's logit, as 15043+1 or 15043-1; ID-inf forbids it; may be repeated",
    )
    group.add_argument(
        "-s",
        "--seed",
        type=int,
        default=-1,
        metavar="N",
        help="random seed; -1 = new each run (default %(default)s)",
    )
    group.add_argument(
        "--stop",
        type=utf8,
        action="append",
        default=[],
        metavar="TEXT",
        help="ends the answer where TEXT appears, which is not printed; may be repeated",
    )


def sampler_from(options: argparse.Namespace) -> Sampler:
    """The `Sampler` that parsed options ask for; raises `SamplingError` for a bad range."""
    return Sampler(
        **{name: getattr(options, name) for name, *_ in _FIELDS},
        logit_bias=dict(options.logit_bias or ()),
        seed=None if options.seed == -1 else options.seed,
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
