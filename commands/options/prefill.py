"""Options that say how a prompt is read, shared by the commands that read one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...runtime.prefill import PREFILLS, Prefill, SparsePrefill
from ..terminal.notices import notice
from .methods import Axis

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.keep import Keep
    from ...runtime.model import Model
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


def follows_pack(disk: Disk) -> bool:
    """Whether what is read into this store follows a pack, which it leaves as it is."""
    return disk.read_only or disk.parent is not None


def prefill_of_question(
    model: Model, attend: Attend, keep: Keep, n_ctx: int, disk: Disk | None
) -> Prefill | None:
    """How a question will be read that follows a pack, where no option says it; None: as the
    context is that it follows, which the store knows.

    The question stays in memory, or in a new pack that begins with the other one. What a pack holds
    already says how others in it are read.
    """
    if disk is None or not follows_pack(disk):
        return None
    prefill = model.prefill_of_question(attend, keep, n_ctx, disk)
    if not isinstance(prefill, SparsePrefill):
        return None
    notice(
        f"prompts are read like generated tokens, sparsely (k {prefill.k}, after the first "
        f"{prefill.from_:,} tokens): --prefill exact reads all"
    )
    return prefill
