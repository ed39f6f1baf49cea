"""Options that say how a prompt is read, shared by the commands that read one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...runtime.prefill import PREFILLS, Prefill, SparsePrefill
from ..terminal.notices import notice
from .methods import Axis

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.store import Disk

PREFILL_AXIS: Axis[Prefill] = Axis("prefill", "--prefill", PREFILLS, "exact", prefix="prefill-")


def add_prefill_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--prefill` and what the methods know."""
    group = parser.add_argument_group("prefill", "what a token of a prompt reads of the context")
    PREFILL_AXIS.add(group, "what it reads")
    parser.set_defaults(prefill=None)  # a pack goes on as it was begun


def prefill_from(options: argparse.Namespace) -> Prefill | None:
    """The prefill method the options name, None if they name none; `KvarnError` for options that
    it does not know."""
    named = options.prefill or PREFILL_AXIS.default
    found = PREFILL_AXIS.chosen(argparse.Namespace(**{**vars(options), "prefill": named}))
    return found if options.prefill else None


def prefill_of_question(attend: Attend, disk: Disk | None) -> Prefill | None:
    """How a question about a pack that stays as it is will be read, where no option says it."""
    if disk is None or not disk.read_only or not attend.selects:
        return None
    prefill = SparsePrefill()
    notice(
        f"prompts are read like generated tokens, sparsely (k {prefill.k}, after the first "
        f"{prefill.from_:,} tokens): --prefill exact reads all"
    )
    return prefill
