"""Locks between processes: one of them does what the others wait for."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOOK = 0.02  # seconds between two tries
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(folder: int, name: str, seconds: float) -> Iterator[None]:
    """In the block, no other process is in a block of this name. The file of that name, which is
    empty, exists meanwhile in the open folder.

    Goes on without the lock after `seconds` (a process that has it may be stopped), and where the
    file cannot be made or the file system has no locks.
    """
    try:
        fd = os.open(name, _FLAGS, 0o600, dir_fd=folder)
    except OSError:
        yield
        return
    try:
        end = time.monotonic() + seconds
        while not _try_lock(fd) and time.monotonic() < end:
            time.sleep(_LOOK)
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        os.close(fd)


def _try_lock(fd: int) -> bool:
    """Whether the file is locked for this process, or cannot be locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK
    return True
