"""Memory for matrices that are laid out anew. No Numba."""

import ctypes
import mmap
import sys

import numpy as np
import numpy.typing as npt

PIECE = 32 << 20
_AT_ONCE = 16 << 20
_MADV_POPULATE_WRITE = 23  # Linux 5.14


class Arena:
    """Memory that is given out bit by bit and stays as long as one user of it does.

    Mapped in large pieces, the first of `n_bytes`, which the system pages as it sees fit: huge
    pages, which NumPy would ask for, read no faster here and can take four times as long to come
    by (in a virtual machine whose host has to find the memory).
    """

    def __init__(self, n_bytes: int = 0) -> None:
        self._first = self._free = _mapped(n_bytes) if n_bytes else np.empty(0, np.uint8)

    def take(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """uint8[n_bytes], on a cache line."""
        if n_bytes > len(self._free):
            self._free = _mapped(max(n_bytes, PIECE))
        taken, self._free = self._free[:n_bytes], self._free[-(-n_bytes // 64) * 64 :]
        return taken

    def populate(self) -> None:
        """Have the system provide the first piece now, in the calling thread.

        For a thread beside one that imports or reads: without the interpreter's lock, at half the
        cost of providing page by page what is written first. Where the system cannot do that, it
        will do so page by page.
        """
        if sys.platform != "linux":
            return
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for start in range(0, len(self._first), _AT_ONCE):
            piece = self._first[start : start + _AT_ONCE]
            if advise(piece.ctypes.data, piece.nbytes, _MADV_POPULATE_WRITE):
                return


def _mapped(n_bytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)
