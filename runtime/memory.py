"""How much memory there is, in this process and on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def human_bytes(n_bytes: float) -> str:
    """`n_bytes` with a binary unit and three significant digits: 1536 → "1.50 KiB"."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(n_bytes) >= 1024 and len(units) > 1:
        n_bytes /= 1024
        units.pop(0)
    return f"{n_bytes:.0f} B" if units[0] == "B" else f"{n_bytes:.3g} {units[0]}"


def available_bytes() -> int:
    """Memory that can be allocated without swapping: the system's, within the cgroup's limit."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: all of the physical memory is the best guess
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, used = _read_number("memory.max"), _read_number("memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _read_number(name: str) -> int | None:
    try:
        text = (_CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def peak_resident_bytes() -> int:
    """The most physical memory this process has held, mapped files included."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
