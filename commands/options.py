"""Options that several commands share: sampling and stop strings, named as in llama.cpp."""

import argparse
import re

from ..runtime.sampling import Sampler

_BIAS = re.compile(r"(\d+)([+-].+)")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--temp` … `--seed` and `--stop` to `parser`; defaults are those of `Sampler`."""
    group = parser.add_argument_group(
        "sampling", "how the next token is chosen; names, defaults and order as in llama.cpp"
    )
    add = group.add_argument
    add(
        "--temp",
        type=float,
        default=Sampler.temp,
        metavar="T",
        help="temperature; 0 takes the most likely token (%(default)s)",
    )
    add(
        "--top-k",
        type=int,
        default=Sampler.top_k,
        metavar="N",
        help="only the N most likely tokens, 0 = all (%(default)s)",
    )
    add(
        "--top-p",
        type=float,
        default=Sampler.top_p,
        metavar="P",
        help="only the most likely tokens up to this probability in sum, 1 = all (%(default)s)",
    )
    add(
        "--min-p",
        type=float,
        default=Sampler.min_p,
        metavar="P",
        help="only tokens at least P times as likely as the best, 0 = all (%(default)s)",
    )
    add(
        "--typical",
        "--typical-p",
        dest="typical_p",
        type=float,
        default=Sampler.typical_p,
        metavar="P",
        help="locally typical sampling, 1 = off (%(default)s)",
    )
    add(
        "--repeat-penalty",
        type=float,
        default=Sampler.repeat_penalty,
        metavar="R",
        help="divides positive logits of recent tokens, 1 = off (%(default)s)",
    )
    add(
        "--repeat-last-n",
        type=int,
        default=Sampler.repeat_last_n,
        metavar="N",
        help="how many tokens count as recent, 0 = none, -1 = all (%(default)s)",
    )
    add(
        "--presence-penalty",
        type=float,
        default=Sampler.presence_penalty,
        metavar="A",
        help="taken once from the logits of recent tokens (%(default)s)",
    )
    add(
        "--frequency-penalty",
        type=float,
        default=Sampler.frequency_penalty,
        metavar="A",
        help="taken once per occurrence from the logits of recent tokens (%(default)s)",
    )
    add(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID±BIAS",
        help="adds to a token's logit, as 15043+1; ID-inf forbids it; may be repeated",
    )
    add(
        "--seed",
        type=int,
        default=-1,
        metavar="N",
        help="random numbers to start from, -1 = fresh ones (%(default)s)",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="ends the answer where TEXT appears, which is not printed; may be repeated",
    )


def sampler_from(options: argparse.Namespace) -> Sampler:
    """The `Sampler` that parsed options ask for; raises `SamplingError` for a bad range."""
    return Sampler(
        temp=options.temp,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        typical_p=options.typical_p,
        repeat_penalty=options.repeat_penalty,
        repeat_last_n=options.repeat_last_n,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=dict(options.logit_bias or ()),
        seed=None if options.seed == -1 else options.seed,
    )


def _bias(text: str) -> tuple[int, float]:
    """`15043+1` → (15043, 1.0)."""
    match = _BIAS.fullmatch(text.strip())
    try:
        if match:
            return int(match[1]), float(match[2])
    except ValueError:
        pass  # a bias that is no number is told like any other wrong form
    raise argparse.ArgumentTypeError(f"found {text!r}, expected ID+BIAS or ID-BIAS, as 15043-1")
