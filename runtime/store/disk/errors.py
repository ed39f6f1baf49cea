"""Errors of context packs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ....system.text import one_line
from ..base import StoreError

_MOST_PATH = 4096


class PackError(StoreError):
    """A context pack cannot be opened, used or written; the message begins with its path."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"pack {one_line(str(path), _MOST_PATH)}: {reason}")


class PackBusy(PackError):
    """Another process or context is writing to the pack. It may be free later."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "another process or context is writing to it; wait for it to end")


class PackInParts(PackError):
    """The pack is written in parts, which another writer would damage."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "its blocks are still to be read: go on with `kvarn pack build --each-block`, or "
            "remove it and build it anew",
        )


class ModelMismatch(PackError):
    """Another model, or one with other adapters, made the pack. difference: what made it and what
    was found, without paths ("": as `found` says)."""

    def __init__(self, path: Path, found: str, advice: str, difference: str = "") -> None:
        super().__init__(path, f"{found}: {advice}")
        self.difference = difference or found


class PackDamaged(PackError):
    """What the pack's files hold is not what was written to them."""


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Raise `PackError` where the system cannot open the pack."""
    try:
        yield
    except OSError as error:
        name = f" {one_line(Path(error.filename).name)}:" if error.filename else ""
        raise PackError(path, f"cannot be opened:{name} {error.strerror or error}") from error


def check_place(path: Path) -> None:
    """Raise `PackError` where a file is in the place of a new pack, or of a folder above it."""
    above = next((place for place in (path, *path.parents) if place.exists()), None)
    if above is not None and not above.is_dir():
        raise PackError(
            path, f"{one_line(str(above))} is a file: expected a folder, or a name for a new one"
        )


def checked_path(path: str | Path) -> Path:
    """The path; `PackError` if no file can have it: it is empty, has a NUL or is no Unicode."""
    try:
        fits = str(path) != "" and "\0" not in str(path) and bool(os.fsencode(path))
    except UnicodeEncodeError:  # half of a surrogate pair
        fits = False
    if not fits:
        raise PackError(Path(path), f"{str(path)!a:.100} is not a path that a pack can have")
    return Path(path)
