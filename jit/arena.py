"""Arrays that start on a cache line, and memory for repacked matrices. Imports no Numba."""

import math
import mmap
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

HUGE = 2 << 20
"""Bytes of a huge page of x86-64, and of most systems with ARM; elsewhere, another size does no
harm."""
PIECE = 32 << 20
# Bytes that `populate` touches between two waits for the interpreter's lock. Large, as a thread
# that imports releases the lock only every 5 ms.
_STEP = 64 << 20
_QUICK = 1e-3  # seconds to obtain a huge page


def aligned(shape: int | tuple[int, ...], dtype: Any, line: int = 64) -> Any:
    """np.empty(shape, dtype) on a cache line; NumPy itself aligns to 16 bytes only."""
    n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + line, np.uint8)
    start = -raw.ctypes.data % line
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


class Arena:
    """Memory for arrays, taken piece by piece; a mapping lives as long as any array in it.

    The first mapping has `n_bytes`.
    """

    def __init__(self, n_bytes: int = 0) -> None:
        # The first mapping begins with a huge page; what is never touched takes no memory.
        self._mapping = private_mapping(n_bytes + HUGE)
        whole: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self._offset = -whole.ctypes.data % HUGE
        self._first = self._free = whole[self._offset : self._offset + n_bytes]
        self._untouched, self._lock = True, Lock()

    def take(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """The next n_bytes, uint8, which start on a cache line."""
        with self._lock:
            self._untouched = False
            if n_bytes > len(self._free):
                self._free = np.frombuffer(private_mapping(max(n_bytes, PIECE)), np.uint8)
            taken, self._free = self._free[:n_bytes], self._free[-(-n_bytes // 64) * 64 :]
        return taken

    def populate(self) -> None:
        """Touch the pages of the first mapping, until the first call of `take`.

        A second thread does this while the main one imports modules: NumPy writes without the
        interpreter's lock. `MADV_POPULATE_WRITE` would block other threads that map memory.

        Asks for huge pages, in which weights are read a tenth faster, as long as they come quickly:
        a virtual machine that has to get their memory from its host may take 5 ms for each.
        """
        start, step, is_quick = 0, HUGE, True
        while start < len(self._first):
            with self._lock:
                if not self._untouched:
                    return
                piece, began = self._first[start : start + step], time.thread_time()
                if is_quick:
                    ask_for_huge_pages(self._mapping, self._offset + start, len(piece))
                piece[:: mmap.PAGESIZE] = 0
                is_quick = is_quick and time.thread_time() - began < _QUICK * len(piece) / HUGE
            start, step = start + step, min(2 * step, _STEP)


def private_mapping(n_bytes: int) -> mmap.mmap:
    """A mapping of zeros; OSError if the system refuses the memory.

    Private, because Linux by default gives shared mappings no huge pages.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, n_bytes)
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def ask_for_huge_pages(mapping: mmap.mmap, first: int, n_bytes: int) -> None:
    """Ask Linux for huge pages where bytes `first` … `first + n_bytes - 1` are touched next."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE, first, n_bytes)
