"""How fast contexts that evict read a prompt and decode after it: HashEvict, table 1.

    python -m lab.results.speed --model MODEL.gguf --task needle --length 4096 \\
        --contexts 10 --keep hashevict,h2o --keep-budget 50% --text TEXTS --answers FILE

For each context, every arm reads the same tokens as one prompt and then decodes the first of them
again, SPEED_ROUNDS times in turn. Kept is the median of each rate, in tokens per second, all that
its tokens cost included, so also choosing what to evict. Contexts are measured one after the other,
on all cores, whatever `--processes` says: nothing else may compute meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from kvarn.evals.quality import Arm
from kvarn.evals.quality.plan import Cell
from kvarn.evals.quality.reading import TokenSample
from kvarn.runtime.attend import Full

from .plan import SPEED_ROUNDS
from .study import Contexts, keeping_arm, parser, studied, study

if TYPE_CHECKING:
    from kvarn.runtime.model import Model

DECODED = 64
"""Tokens that are decoded after a prompt."""


@dataclass(frozen=True)
class Speed(Contexts):
    """The contexts, and the keep methods with their budgets, beside a context that keeps all."""

    keeps: tuple[str, ...]
    budgets: tuple[str, ...]

    name: ClassVar[str] = "speed"
    sources: ClassVar[tuple[str, ...]] = ("speed.py",)

    def figures(self, read: TokenSample, cell: Cell, number: int) -> Iterator[dict[str, Any]]:
        arms = [Arm(), *(keeping_arm(keep, b) for b in self.budgets for keep in self.keeps)]
        found: list[list[tuple[float, float]]] = [[] for _ in arms]
        for turn in range(SPEED_ROUNDS):
            for i in range(len(arms)):
                at = (i + turn) % len(arms)
                found[at].append(rates(self.model, read, arms[at]))
        for arm, of_arm in zip(arms, found):
            prefill, decode = zip(*of_arm)
            yield {
                "task": cell.task, "length": cell.length, "context": number, "layer": None,
                "arm": str(arm), "scores": [], "entropy": [], "read": [], "covered": [],
                "error": [], "prefill": [median(prefill)], "decode": [median(decode)],
            }  # fmt: skip


def rates(model: Model, read: TokenSample, arm: Arm) -> tuple[float, float]:
    """Tokens per second of the prompt, and of DECODED tokens after it, the first left out: before
    it, a method that evicts after the prompt does so."""
    prompt, again = read.ids, read.ids[:DECODED]
    with model.context(len(prompt) + DECODED, Full(), arm.keep_for(len(read.ids))) as context:
        began = perf_counter()
        context.prefill(prompt)
        context.decode(again[0])
        at_first = perf_counter()
        for token in again[1:]:
            context.decode(token)
        end = perf_counter()
    return len(prompt) / (at_first - began), (len(again) - 1) / (end - at_first)


def speed_of(o: argparse.Namespace) -> Speed:
    """What the options name."""
    return Speed(*studied(o), o.work, tuple(o.keep.split(",")), tuple(o.keep_budget.split(",")))


def main() -> None:
    """Entry point of the module."""
    p = parser(__doc__)
    p.add_argument("--keep", required=True, help="keep methods with commas, as in `kvarn eval`")
    p.add_argument("--keep-budget", default="50%", help="with commas, of what is read")
    o = p.parse_args()
    o.processes = 1
    study(o, speed_of)


if __name__ == "__main__":
    main()
