"""Files that a command is to write."""

from __future__ import annotations

from pathlib import Path

from ...system.errors import KvarnError
from ...system.files import check_target


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuse, before hours of work, what could not be written after them: `FileRefused` where
    `path` is no name of a file to write, `KvarnError` where it is one of the files to read."""
    if path is None:
        return
    check_target(path)
    for one in inputs:
        if one is not None and one.exists() and path.exists() and path.samefile(one):
            raise KvarnError(f"{path} is a file to read from: write to another one")
