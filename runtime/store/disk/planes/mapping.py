"""Files in memory, mapped by the system's own call.

Python's `mmap` keeps a descriptor open for each mapping, and maps nothing beyond the end of a file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mapping:
    """The first `n_bytes` of an open file at `address`, until nothing refers to this object.

    There may be more bytes than the file has: those that it gets later appear; touching others ends
    the process (SIGBUS). writable_copy: what is written there stays in memory, page by page.
    Raises OSError.
    """

    def __init__(self, fd: int, n_bytes: int, writable_copy: bool = False) -> None:
        access, kind = mmap.PROT_READ, mmap.MAP_SHARED
        if writable_copy:
            access, kind = access | mmap.PROT_WRITE, mmap.MAP_PRIVATE
        address = _libc.mmap(None, n_bytes, access, kind, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address: int = address
        # Not at exit: a thread may still be reading.
        weakref.finalize(self, _libc.munmap, address, n_bytes).atexit = False
