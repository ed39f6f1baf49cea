"""The bytes of the library on disk: never more than allowed, counted before they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...memory import human_bytes
from ...store import StoreError
from .entry import Entry


class BudgetExceeded(StoreError):
    """The library may not write so many bytes."""


class DiskBudget:
    """Limits entries to `most_bytes`; the least recently used ones make room for others.

    entries: all there are. remove: takes an entry out of the library and removes its files.
    """

    def __init__(
        self, most_bytes: int, entries: Collection[Entry], remove: Callable[[Entry], None]
    ) -> None:
        self.most_bytes, self._entries, self._remove = most_bytes, entries, remove

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, at most."""
        return sum(entry.n_bytes for entry in self._entries if entry.is_managed)

    def reserve(self, entry: Entry, n_bytes: int, source: Entry | None = None) -> None:
        """Let an entry grow by `n_bytes`; `BudgetExceeded` if what can be removed is too little.

        source: what a new entry begins with; it is not removed.
        """
        if entry.path.exists():
            entry.measure()
        self.shrink(self.most_bytes - n_bytes, entry, source)
        if (total := self.n_bytes + n_bytes) > self.most_bytes:
            raise BudgetExceeded(
                f"what was read takes its {human_bytes(self.most_bytes)} of disk space, and what "
                f"is in use cannot be removed ({human_bytes(total)} would be needed): use a "
                "larger --cache-size"
            )
        entry.n_bytes += n_bytes

    def shrink(self, most_bytes: int, *keep: Entry | None) -> None:
        """Remove entries but `keep`, those first that were not used for the longest time and that
        no other begins with, until `most_bytes` are left, or nothing that can be removed."""
        while self.n_bytes > most_bytes:
            spare = [
                entry
                for entry in self._entries
                if entry.is_removable and not any(entry is one for one in keep)
            ]
            if not spare:
                return
            self._remove(min(spare, key=lambda entry: entry.used))
