"""The memory of another process, on systems that do not enforce a limit themselves.

Linux enforces RLIMIT_AS. macOS accepts it and ignores it. There the waiting process checks the
other's memory every few milliseconds and ends it if it has too much. How far it exceeds the limit
until then depends on how fast it allocates.
"""

import ctypes
import sys

NEEDED = sys.platform == "darwin"
INTERVAL = 0.005 if NEEDED else 3600.0
"""Seconds between two checks."""


class MemoryExceeded(Exception):
    """A process has more memory than it may."""


def check(pid: int, limit: int) -> None:
    """Raises `MemoryExceeded` if the process has more than `limit` bytes; does nothing on Linux."""
    if NEEDED and footprint(pid) > limit:
        raise MemoryExceeded


class _Usage(ctypes.Structure):
    """`rusage_info_v0` of macOS's <sys/resource.h>."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("idle_wakeups", ctypes.c_uint64),
        ("interrupt_wakeups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("phys_footprint", ctypes.c_uint64),
        ("start_time", ctypes.c_uint64),
        ("exit_time", ctypes.c_uint64),
    )


def footprint(pid: int) -> int:
    """Bytes of memory of a child process on macOS; 0 if it has just ended."""
    usage = _Usage()
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(0), ctypes.byref(usage))
    return 0 if failed else int(usage.phys_footprint)
