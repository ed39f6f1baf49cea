"""The cores, CPU quota, memory and CPU features that this process may use. Imports no Numba.

On Linux from /proc, /sys and the control groups (v1 and v2), elsewhere from the standard library
and sysctl.
"""

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")  # tests give a tree of files

# Names of features that LLVM names in another way: Linux's for x86, Linux's for ARM, Apple's.
_X86_NAMES = {
    "abm": "lzcnt",
    "avx512_bf16": "avx512bf16",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "lm": "64bit",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}
_ARM_NAMES = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "crc32": "crc",
    "dcpop": "ccpp",
    "fcma": "complxnum",
    "fp": "fp-armv8",
    "jscvt": "jsconv",
    "lrcpc": "rcpc",
}
_APPLE_NAMES = {
    "neon": "neon",
    "arm.FEAT_BF16": "bf16",
    "arm.FEAT_DotProd": "dotprod",
    "arm.FEAT_FP16": "fullfp16",
    "arm.FEAT_I8MM": "i8mm",
}


def usable_cpus() -> list[int]:
    """Logical CPUs that this process may run on (affinity)."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores(cpus: list[int] | None = None, root: Path = _ROOT) -> int:
    """Physical cores behind the usable logical CPUs."""
    cpus = usable_cpus() if cpus is None else cpus
    if sys.platform == "darwin":
        return _darwin_cores() or len(cpus)
    siblings = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        core = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        siblings.add(core or f"cpu {cpu}")
    return max(1, len(siblings))


def _darwin_cores() -> int | None:
    """Performance cores of Apple's CPUs, all cores of others."""
    return _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")


def _sysctl(name: str) -> int | None:
    """A number of macOS's kernel; None where it has no such one."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    call = ctypes.CDLL(None).sysctlbyname
    failed = call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value


def features(root: Path = _ROOT) -> frozenset[str]:
    """Features of this CPU that the system lets programs use, those of kernels by LLVM's names:
    those that Linux lists for x86 and ARM, or macOS for ARM; none on other systems."""
    if sys.platform == "darwin":
        names = _APPLE_NAMES.items()
        return frozenset(llvm for name, llvm in names if _sysctl(f"hw.optional.{name}"))
    if sys.platform != "linux":
        return frozenset()
    for line in _lines(root / "proc/cpuinfo"):
        name, _, listed = line.partition(":")
        if (kind := name.strip()) in ("flags", "Features"):
            names = _X86_NAMES if kind == "flags" else _ARM_NAMES
            return frozenset(names.get(one, one) for one in listed.split())
    return frozenset()


def boot() -> str:
    """What Linux calls this boot, by a number that no other boot has; "" on other systems. The
    features of the CPU stay the same until the next one."""
    return _text(Path("/proc/sys/kernel/random/boot_id")) if sys.platform == "linux" else ""


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The CPU time that the control groups allow, in CPUs; None without a limit."""
    limits = []
    for folder in _groups("cpu", root):
        quota, period = [*_text(folder / "cpu.max").split(), "", ""][:2]  # v2: "200000 100000"
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def physical_cores(root: Path = _ROOT) -> int:
    """The default number of threads: physical cores within affinity and quota.

    Rounds a quota down: with one thread too many, the system stops all of them again and again.
    """
    quota = cpu_quota(root)
    n = cores(root=root)
    return n if quota is None else max(1, min(n, math.floor(quota + 1e-6)))


def memory(root: Path = _ROOT) -> tuple[int, int]:
    """Bytes of memory in total and available to this process, control group limits included."""
    total = available = 0
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            value = int(rest.split()[0]) * 1024
            total, available = (value, available) if name == "MemTotal" else (total, value)
    if not total and sys.platform != "win32":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        available = total
    for folder in _groups("memory", root):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit_text, used_text = _text(folder / limit), _text(folder / used)
            if limit_text.isdigit() and int(limit_text) < total:
                total = int(limit_text)
                used_bytes = int(used_text or 0) - _reclaimable(folder)
                available = min(available, max(0, total - used_bytes))
    return total, available


def _reclaimable(group: Path) -> int:
    """Bytes of a control group's cached file pages, which the system drops when memory is short."""
    fields = dict(line.split() for line in _text(group / "memory.stat").splitlines())
    return int(fields.get("inactive_file", 0))


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group and of its parents."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = base / path.lstrip("/")
        # In a container the path is the host's, but the container's group is mounted at `base`.
        for folder in (group, *group.parents):
            if folder.is_dir():
                yield folder
            if folder == base:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, read as far as they are asked for."""
    try:
        with path.open() as file:
            yield from file
    except OSError:
        return
