"""Memory on cache lines, and for matrices that are laid out anew. Imports no Numba."""

import math
import mmap
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

PIECE = 32 << 20
# Between two of these the thread that populates asks for the interpreter again, which another one
# that imports gives up every 5 ms only.
_AT_ONCE = 64 << 20


def aligned(shape: int | tuple[int, ...], dtype: Any, line: int = 64) -> Any:
    """np.empty(shape, dtype) starting on a cache line: NumPy only promises 16 bytes."""
    n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + line, np.uint8)
    start = -raw.ctypes.data % line
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


class Arena:
    """Memory that is given out bit by bit and stays as long as one user of it does.

    Mapped in large pieces, the first of `n_bytes`, which the system pages as it sees fit: huge
    pages, which NumPy would ask for, read no faster here and can take four times as long to come
    by (in a virtual machine whose host has to find the memory).
    """

    def __init__(self, n_bytes: int = 0) -> None:
        self._first = self._free = _mapped(n_bytes) if n_bytes else np.empty(0, np.uint8)
        self._untouched, self._lock = True, Lock()

    def take(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """uint8[n_bytes], on a cache line."""
        with self._lock:
            self._untouched = False
            if n_bytes > len(self._free):
                self._free = _mapped(max(n_bytes, PIECE))
            taken, self._free = self._free[:n_bytes], self._free[-(-n_bytes // 64) * 64 :]
        return taken

    def populate(self) -> None:
        """Have the system provide the first piece, until something is taken.

        For a thread of its own, beside one that imports: NumPy writes without the interpreter's
        lock, and page faults hinder nobody who maps memory (`MADV_POPULATE_WRITE` does).
        """
        for start in range(0, len(self._first), _AT_ONCE):
            with self._lock:
                if not self._untouched:
                    return
                self._first[start : start + _AT_ONCE : mmap.PAGESIZE] = 0


def _mapped(n_bytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)
