"""Arrays that start on a cache line, and memory for repacked matrices. Imports no Numba."""

import math
import mmap
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

PIECE = 32 << 20
# Bytes that `populate` touches between two waits for the interpreter's lock. Large, as a thread
# that imports releases the lock only every 5 ms.
_STEP = 64 << 20


def aligned(shape: int | tuple[int, ...], dtype: Any, line: int = 64) -> Any:
    """np.empty(shape, dtype) on a cache line; NumPy itself aligns to 16 bytes only."""
    n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + line, np.uint8)
    start = -raw.ctypes.data % line
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


class Arena:
    """Memory for arrays, taken piece by piece; a mapping lives as long as any array in it.

    The first mapping has `n_bytes`. Unlike NumPy, no mapping asks for huge pages: they read no
    faster here, and in a virtual machine they can take four times as long to allocate.
    """

    def __init__(self, n_bytes: int = 0) -> None:
        self._first = self._free = _mapped(n_bytes) if n_bytes else np.empty(0, np.uint8)
        self._untouched, self._lock = True, Lock()

    def take(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """The next n_bytes, uint8, which start on a cache line."""
        with self._lock:
            self._untouched = False
            if n_bytes > len(self._free):
                self._free = _mapped(max(n_bytes, PIECE))
            taken, self._free = self._free[:n_bytes], self._free[-(-n_bytes // 64) * 64 :]
        return taken

    def populate(self) -> None:
        """Touch the pages of the first mapping, until the first call of `take`.

        A second thread does this while the main one imports modules: NumPy writes without the
        interpreter's lock. `MADV_POPULATE_WRITE` would block other threads that map memory.
        """
        for start in range(0, len(self._first), _STEP):
            with self._lock:
                if not self._untouched:
                    return
                self._first[start : start + _STEP : mmap.PAGESIZE] = 0


def _mapped(n_bytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)
