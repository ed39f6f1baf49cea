"""Options that say which tokens a query reads, shared by the commands that open a context."""

from __future__ import annotations

import argparse

from ...runtime.attend import ATTENDS, Attend
from ...system.errors import KvarnError
from .methods import Axis
from .output import check_output

ATTEND_AXIS: Axis[Attend] = Axis("method", "--method", ATTENDS, "full")


def add_attend_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds `--method` and what the methods know; the group, for more of the kind."""
    group = parser.add_argument_group("attention", "what a generated token reads of the context")
    ATTEND_AXIS.add(group, "what it reads")
    return group


def attend_from(options: argparse.Namespace) -> Attend:
    """The attend method the options name; `KvarnError` for options that it does not know."""
    return ATTEND_AXIS.chosen(options)


def check_recording(options: argparse.Namespace) -> None:
    """Refuse `--record-selections` before anything is read where nothing is selected, or the file
    cannot be written."""
    selects = ATTEND_AXIS.chosen_type(options).selects
    replays = getattr(options, "replay", None) is not None
    if options.record_selections is not None and not selects and not replays:
        raise KvarnError(
            f"--record-selections has nothing to record: --method {options.method} attends to all "
            "tokens"
        )
    check_output(options.record_selections, options.model, getattr(options, "file", None))
