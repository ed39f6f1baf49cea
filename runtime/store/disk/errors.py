"""What can be wrong with a context pack."""

from __future__ import annotations

from pathlib import Path

from ..base import StoreError


class PackError(StoreError):
    """A context pack cannot be opened, used or written; the message begins with its path."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        super().__init__(f"pack {path}: {what}")


class PackDamaged(PackError):
    """What the pack's files hold is not what was written to them."""
