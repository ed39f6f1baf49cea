"""Options of `kvarn eval` that name its arms: lists of methods with their budgets."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...evals.quality.oracle import Oracle
from ...runtime.attend import ATTENDS
from ...runtime.axes import ATTEND_AXIS, KEEP_AXIS, PREFILL_AXIS, Axis
from ...runtime.keep import KEEPS, Keep
from ...runtime.prefill import PREFILLS
from ...system.errors import WrongUsage
from ...system.values import Budget
from .values import argument_type, positive

if TYPE_CHECKING:
    from ...evals.quality import Arm

COMMON_BUDGET, KEEP_BUDGET = "2%", "20%"
EVAL_KEEPS: Axis[Keep] = replace(KEEP_AXIS, methods={**KEEPS, Oracle.name: Oracle})


def add_arm_options(parser: argparse.ArgumentParser) -> None:
    """Adds --method, --budget, --probe, --keep, --keep-budget and --prefill."""
    group = parser.add_argument_group("methods", "the others are compared with the first one")
    group.add_argument(
        "--method",
        metavar="M,…",
        type=words,
        default=["full"],
        help=f"{', '.join(ATTENDS)}, with their own options, as in topk:index=flat:sink=8 "
        "(default full)",
    )
    group.add_argument(
        "--budget",
        metavar="N,…",
        type=budgets_of,
        help="tokens read, for methods that choose: a share or a number (default: "
        f"{COMMON_BUDGET}% per KV head, and of auto what it reads by itself)",
    )
    group.add_argument(
        "--probe",
        metavar="N",
        type=positive,
        help="every N steps measure the softmax mass that was read and the error of attention's "
        "output (columns covered and error)",
    )
    group.add_argument(
        "--keep",
        metavar="K,…",
        type=words,
        default=["all"],
        help=f"which tokens stay in the KV cache: {', '.join(KEEPS)} (default all), or oracle: "
        "those that the question itself attends to",
    )
    group.add_argument(
        "--keep-budget",
        metavar="N,…",
        type=budgets_of,
        help=f"how many stay, if not all (default {KEEP_BUDGET}%)",
    )
    group.add_argument(
        "--prefill",
        metavar="P,…",
        type=words,
        default=["exact"],
        help=f"how contexts are read: {', '.join(PREFILLS)}, with their own options, as in "
        "sparse:k=1024 (default exact)",
    )


def words(text: str) -> list[str]:
    """An argparse type: a list with commas."""
    return [word.strip() for word in text.split(",")]


def budgets_of(text: str) -> list[str]:
    """An argparse type: a list of budgets, as their user wrote them, which names arms."""
    for word in words(text):
        argument_type(Budget.parse)(word)
    return words(text)


def arms_from(options: argparse.Namespace) -> Iterator[Arm]:
    """Every method with each of its budgets, combined with every keep and prefill method. Raises
    `KvarnError` for budgets that none of them takes."""
    from ...evals.quality import Arm

    methods = [
        (name, budget) for name in options.method for budget in _budgets(name, options.budget)
    ]
    keeps = list(keeps_from(options.keep, options.keep_budget or [KEEP_BUDGET], EVAL_KEEPS))
    if options.budget is not None and not any(budget for _, budget in methods):
        raise WrongUsage(f"--budget has no effect with --method {','.join(options.method)}")
    if options.keep_budget is not None and not any(share for _, share, _ in keeps):
        raise WrongUsage(f"--keep-budget has no effect with --keep {','.join(options.keep)}")
    prefills = [(name, PREFILL_AXIS.parsed(name, {})) for name in options.prefill]
    common = {} if options.probe is None else {"probe": options.probe}
    for prefill, reading in prefills:
        for keep, share, keeping in keeps:
            for method, budget in methods:
                settings = common | ({"budget": budget} if budget else {})
                attend = ATTEND_AXIS.parsed(method, settings)
                yield Arm(method, budget, keep, share, attend, keeping, prefill, reading)


def _budgets(method: str, budgets: list[str] | None) -> list[str]:
    """The budgets that a method is to be run with; [""] where it takes none or names its own.

    Without any, methods are compared at 2% per KV head, and one that counts in another unit has its
    own default.
    """
    kind = ATTEND_AXIS.find(method)
    default = getattr(kind, "budget", None)
    if default is None or ":budget=" in method:
        return [""]
    if budgets is None:
        shared = getattr(kind, "budget_unit", "kv-head") == "kv-head"
        return [COMMON_BUDGET if shared else str(default)]
    return budgets


def keeps_from(
    names: list[str], budgets: list[str], axis: Axis[Keep] = KEEP_AXIS
) -> Iterator[tuple[str, str, Keep]]:
    """Every keep method with every budget it takes, or the one that it names."""
    for name in names:
        takes = "budget" in axis.find(name).options() and ":budget=" not in name
        for share in budgets if takes else [""]:
            settings = {"budget": share} if share else {}
            yield name, share, axis.parsed(name, settings)
