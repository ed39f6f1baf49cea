"""Files that a command is to write, or has written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...system.errors import KvarnError
from ...system.files import check_target
from ..terminal.notices import notice

if TYPE_CHECKING:
    from ...convert.quantize.files import Report
    from ...runtime.attend import Attend


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuse, before hours of work, what could not be written after them: `FileRefused` where
    `path` is no name of a file to write, `KvarnError` where it is one of the files to read."""
    if path is None:
        return
    check_target(path)
    for one in inputs:
        if one is not None and one.exists() and path.exists() and path.samefile(one):
            raise KvarnError(f"{path} is a file to read from: write to another one")


def check_recording(path: Path | None, attend: Attend, *inputs: Path | None) -> None:
    """Refuse `--record-selections` before anything is read where nothing is selected, or the file
    cannot be written."""
    if path is not None and not attend.selects:
        raise KvarnError(
            f"--record-selections has nothing to record: --method {attend.name} attends to all "
            "tokens"
        )
    check_output(path, *inputs)


def tell_dropped(source: Path, report: Report) -> None:
    """Say what a model of other types lacks that its source has."""
    if report.dropped_encoders:
        notice(
            f"the hash encoders in {source.name} are left out: they fit its keys and queries "
            "alone; `kvarn learn` trains others"
        )
