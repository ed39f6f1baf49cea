"""Errors of contexts on several machines."""

from __future__ import annotations

from ...system.errors import KvarnError
from ...system.text import one_line


class ShardError(KvarnError):
    """A shard cannot serve a context, or does not answer; the message begins with its address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"shard {one_line(address)}: {reason}")
