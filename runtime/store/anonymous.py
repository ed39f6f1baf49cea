"""Memory of no file, for what no file holds yet."""

from __future__ import annotations

import mmap

import numpy as np

from ..memory import human_bytes
from .base import StoreError


def anonymous(n_bytes: int, what: str) -> tuple[mmap.mmap, int]:
    """A mapping of `n_bytes` zeros and its address; `StoreError` when the system gives none."""
    try:
        mapping = mmap.mmap(-1, n_bytes)
    except OSError as error:
        raise StoreError(
            f"no memory for {what} ({human_bytes(n_bytes)}): {error.strerror}"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux only
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping, np.frombuffer(mapping, np.uint8).ctypes.data
