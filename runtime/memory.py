"""How much memory is available, how much this process used, and how to write it."""

from __future__ import annotations

import sys
from pathlib import Path

from ..jit.machine import memory
from ..system.text import human_bytes as human_bytes  # noqa: PLC0414 - for those who tell of it


def available_bytes() -> int:
    """Memory that can be allocated without swapping: the system's, within the cgroup's limit."""
    return memory()[1]


def peak_resident_bytes() -> int:
    """The most physical memory this program has held, mapped files included."""
    status = Path("/proc/self/status")  # getrusage also counts memory from before exec
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
