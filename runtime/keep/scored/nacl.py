"""keep `nacl`: what the end of the prompt attends to most, and tokens drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....ops.arrays import F32, F64, I32
from ....system.values import Budget, WrongValue
from ...methods import option
from ..base import KeepError
from .base import ScoredKeep, highest
from .methods import newest

_BUDGETS = np.array([0.10, 0.20, 0.30])
_PROXIES = np.array([0.04, 0.20, 0.215])
_NEWEST = np.array([0.01, 0.02, 0.015])
_BEST = np.array([0.02, 0.06, 0.105])
"""NaCl, table 4, as shares of the prompt; what remains of a budget is drawn."""
_CODE_PROXIES = 0.01
_CODE_PROTECTED, _CODE_BEST = 1 / 20, 12 / 20
_CODE_SINKS, _CODE_SINK_SHARE = 256, 1 / 5
"""The defaults of the authors' code (PaddlePaddle/Research, NLP/ACL2024-NACL, src/args.py): the
proxies as a share of the prompt, the others of a budget of 20%. Of the protected tokens, 256 are
sinks. In their prompts of 128K tokens that is a fifth; here it is at most a fifth in any prompt,
because 256 are more than all that is protected in a short one."""
DRAWS = ("scores", "uniform", "none")
HEADS = ("own", "same")
SETTINGS = ("paper", "code")
TABLE = "table"


def _proxies(value: Budget | str | int) -> Budget | str:
    """How many proxies there are: `TABLE`, a share or a count."""
    if value == TABLE:
        return TABLE
    try:
        return Budget.parse(value)
    except WrongValue as wrong:
        raise WrongValue(f"{TABLE}, {wrong.expected}", value) from None


class Shares(NamedTuple):
    """How a budget of tokens is divided."""

    newest: int
    best: int
    drawn: int
    sinks: int = 0


@dataclass(frozen=True)
class NaCl(ScoredKeep):
    """The last tokens of the prompt are proxies: their queries score the others.

    Of the budget, a part goes to the newest of them, a part to the highest scores F, and the rest
    is drawn from the others without replacement, with probability softmax(F) (by Gumbel noise). The
    shares are those of table 4, between its rows by interpolation; beyond them the nearest row
    divides the budget. settings: "code" takes those of the authors' code instead, which protects
    the first tokens, too, and has fewer proxies. random: draw by scores, uniformly, or not at all:
    then the best get that share, too. heads: each KV head of each layer draws for itself, or those
    of a layer sum their scores and keep the same tokens. proxies: how many of the last tokens
    score, a number or a share of the prompt as in figure 5; "table" is that of the settings, 4 to
    21.5% or 1%. Source: Chen et al. 2024, section 5, algorithm 1, table 4. Raises `KeepError` for
    other values, and for a negative seed.
    """

    name: ClassVar[str] = "nacl"
    summary: ClassVar[str] = (
        "after the prompt, those that its end attends to most and some drawn at random, separately "
        "for each KV head (NaCl)"
    )
    random: str = option(
        "scores", "how tokens beside the best are drawn (default scores)", choices=DRAWS
    )
    heads: str = option(
        "own",
        "whether each KV head keeps its own tokens, or all the same (default own)",
        choices=HEADS,
    )
    proxies: Budget | str | int = option(  # noqa: RUF009 - a field
        TABLE,
        "tokens at the end whose queries score: a share of the prompt (10%) or a count (default "
        "table: 4 to 21.5%, as in the paper's table 4, or 1% with the settings of the code)",
        _proxies,
    )
    settings: str = option(
        "paper",
        "how the budget is divided: as in the paper's table 4, or as in the authors' code, which "
        "also keeps up to 256 of the first tokens (default paper)",
        choices=SETTINGS,
    )
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "proxies", _proxies(self.proxies))
        except WrongValue as wrong:
            raise KeepError(
                f"keep nacl: proxies is {self.proxies!r:.80}, expected {wrong.expected}"
            ) from None
        super().__post_init__()

    def n_proxies(self, n_tokens: int, budget: int) -> int:
        if not isinstance(self.proxies, Budget):
            is_code = self.settings == "code"
            share = _CODE_PROXIES if is_code else _row(_PROXIES, _in_table(n_tokens, budget))
        elif self.proxies.number:
            return min(self.proxies.number, n_tokens)
        else:
            share = float(self.proxies.share)
        return max(1, round(share * n_tokens))

    def shares(self, n_tokens: int, budget: int) -> Shares:
        """How a budget for a prompt of `n_tokens` is divided."""
        n_sinks = 0
        if self.settings == "code":
            n_protected, n_best = round(_CODE_PROTECTED * budget), round(_CODE_BEST * budget)
            n_sinks = min(_CODE_SINKS, round(_CODE_SINK_SHARE * n_protected))
            n_newest = n_protected - n_sinks
        else:
            share = _in_table(n_tokens, budget)
            n_newest, n_best = (round(_row(x, share) / share * budget) for x in (_NEWEST, _BEST))
        n_drawn = budget - n_sinks - n_newest - n_best
        if self.random == "none":
            return Shares(n_newest, n_best + n_drawn, 0, n_sinks)
        return Shares(n_newest, n_best, n_drawn, n_sinks)

    def choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> I32:
        if self.heads == "same":
            row = self._choose(scores.sum(0), budget, (*seed, 0))
            return np.tile(row, (len(scores), 1)).astype(np.int32)
        rows = [self._choose(row, budget, (*seed, head)) for head, row in enumerate(scores)]
        return np.stack(rows).astype(np.int32)

    def _choose(self, scores: F32, budget: int, seed: tuple[int, ...]) -> NDArray[np.intp]:
        """Slots of one KV head with scores (n,)."""
        n = len(scores)
        n_newest, n_best, n_drawn, n_sinks = self.shares(n, budget)
        top = highest(scores[n_sinks : n - n_newest], n_best) + n_sinks
        left = np.setdiff1d(np.arange(n_sinks, n - n_newest), top, assume_unique=True)
        rng = np.random.default_rng((self.seed, *seed))
        logits = scores[left] if self.random == "scores" else np.zeros(len(left))
        lots = left[highest(logits + rng.gumbel(size=len(left)), n_drawn)]
        between = np.sort(np.concatenate([top, lots]))
        return np.concatenate([np.arange(n_sinks), between, newest(n_newest, n)])


def _in_table(n_tokens: int, budget: int) -> float:
    """The budget as a share of the prompt, within the table's."""
    return float(np.clip(budget / max(n_tokens, 1), _BUDGETS[0], _BUDGETS[-1]))


def _row(values: F64, share: float) -> float:
    return float(np.interp(share, _BUDGETS, values))
