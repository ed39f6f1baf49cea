"""The system's cache of files: how much of a file it holds, and how to drop it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

CAN_FORGET = hasattr(os, "posix_fadvise")


def resident_bytes(paths: Iterable[Path]) -> int:
    """Bytes of the files that are in memory, in whole pages; raises OSError."""
    return sum(map(_resident_bytes, paths))


def forget(paths: Iterable[Path]) -> None:
    """Drop the files' pages from the cache, if they are saved and no process has mapped them."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _resident_bytes(path: Path) -> int:
    with path.open("rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if not n_bytes:
            return 0
        with mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_READ) as mapping:
            view = np.frombuffer(mapping, np.uint8)
            pages = np.zeros(-(-n_bytes // mmap.PAGESIZE), np.uint8)
            address = ctypes.c_void_p(view.ctypes.data)
            del view  # a mapping with views cannot be closed
            failed = _libc.mincore(
                address, ctypes.c_size_t(n_bytes), ctypes.c_void_p(pages.ctypes.data)
            )
            if failed:
                number = ctypes.get_errno()
                raise OSError(number, errno.errorcode.get(number, "mincore failed"), str(path))
            return int((pages & 1).sum()) * mmap.PAGESIZE


_libc = ctypes.CDLL(None, use_errno=True)
