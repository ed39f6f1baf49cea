"""Memory mappings without a file."""

from __future__ import annotations

import mmap
import sys

import numpy as np

from ..memory import human_bytes
from .base import StoreError


def anonymous(n_bytes: int, what: str) -> tuple[mmap.mmap, int]:
    """A mapping of `n_bytes` zeros and its address; `StoreError` if the system refuses.

    Private, because Linux by default gives shared mappings no huge pages, with which attention
    reads a tenth faster.
    """
    try:
        if sys.platform == "win32":
            mapping = mmap.mmap(-1, n_bytes)
        else:
            mapping = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise StoreError(
            f"no memory for {what} ({human_bytes(n_bytes)}): {error.strerror}"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux only
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping, np.frombuffer(mapping, np.uint8).ctypes.data
