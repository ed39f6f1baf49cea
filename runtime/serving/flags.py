"""Flags of requests, in memory that the server and the engine share.

    slot:  0                1                …
           ┌───────┬───────┬───────┬───────┬───
           │ ended │ paused│ ended │ paused│      int64 each
           └───────┴───────┴───────┴───────┴───

Not 0: the request is to end, or nobody reads its answer now. Kernels read the first while a pass
runs (`Context.stop_at`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from pathlib import Path

SLOTS = 4096
"""Requests at the same time, of all kinds."""


class Flags:
    """The flags of all slots, mapped from a file."""

    def __init__(self, path: str | Path) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, SLOTS * 16)
        finally:
            os.close(descriptor)
        self._words = (ctypes.c_int64 * (2 * SLOTS)).from_buffer(self._map)

    @classmethod
    def create(cls) -> tuple[Flags, Path]:
        """New ones, in a file that only this user can open."""
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="kvarn-", dir=shared)
        try:
            os.truncate(descriptor, SLOTS * 16)
        finally:
            os.close(descriptor)
        return cls(name), Path(name)

    def address(self, slot: int) -> int:
        """The address of the int64 that ends the request."""
        return ctypes.addressof(self._words) + 16 * slot

    def clear(self, slot: int) -> None:
        self._words[2 * slot] = self._words[2 * slot + 1] = 0

    def end(self, slot: int) -> None:
        self._words[2 * slot] = 1

    def is_ended(self, slot: int) -> bool:
        return self._words[2 * slot] != 0

    def pause(self, slot: int, paused: bool) -> None:
        self._words[2 * slot + 1] = paused

    def is_paused(self, slot: int) -> bool:
        return self._words[2 * slot + 1] != 0
