"""The facts about this machine and this process that `kvarn doctor` reports, as dictionaries."""

import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..jit import machine, roots
from ..system.trust import Untrusted

if TYPE_CHECKING:
    from ..jit.kernel_cache.folders import CacheProblem

# Features that decide which variant runs, or how fast.
_FEATURES = (
    *("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vl", "avx512vnni"),
    *("avx512vpopcntdq", "avx512bf16", "neon", "dotprod", "fullfp16", "i8mm", "sve"),
)
_ROOFLINE_TYPES = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0")


def cpu() -> dict[str, Any]:
    """Name of the CPU, and how much of it this process may use."""
    name = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    cpus = machine.usable_cpus()
    return {
        "name": name,
        "cores": machine.cores(),
        "logical_cpus": len(cpus),
        "machine_cpus": os.cpu_count(),
        "quota_cpus": machine.cpu_quota(),
    }


def variant() -> dict[str, Any]:
    """The CPU that Numba compiles for, the kernels' variant, and why this one; raises JitError."""
    from ..jit import variant

    forced = os.environ.get("KVARN_SIMD")
    here = "avx" if platform.machine() in ("x86_64", "AMD64") else "neon"
    better = list(variant.NEEDS)[: list(variant.NEEDS).index(variant.VARIANT)]
    better = [name for name in better if name.startswith(here)]
    lacks = {name: ", ".join(sorted(variant.NEEDS[name] - variant.FEATURES)) for name in better}
    lacking = [f"{name} ({features})" for name, features in lacks.items() if features]
    why = "KVARN_SIMD asks for it" if forced else "the best that this CPU runs"
    return {
        "llvm_name": variant.CPU,
        "features": [name for name in _FEATURES if name in variant.FEATURES],
        "variant": variant.VARIANT,
        "why": why + (f"; it lacks what {'; '.join(lacking)} needs" if lacking else ""),
    }


def threads() -> dict[str, Any]:
    """The threading layer, the cost of a parallel region, and the numbers of threads."""
    from ..jit import threads
    from . import measure

    threads.start()
    return {
        "layer": threads.layer(),
        "region_microseconds": round(measure.region_microseconds(), 2),
        "default": threads.n_threads(),
        "most": threads.max_threads(),
    }


def memory() -> dict[str, Any]:
    """Bytes of memory, and whether programs get huge pages."""
    total, available = machine.memory()
    thp = next(iter(_lines("/sys/kernel/mm/transparent_hugepage/enabled")), "")
    chosen = thp.partition("[")[2].partition("]")[0]
    return {"total_bytes": total, "available_bytes": available, "huge_pages": chosen or "unknown"}


def cache() -> dict[str, Any]:
    """The folders of compiled kernels, and why other folders cannot be used.

    `not_usable`: such folders as {what, mend}.
    """
    from ..jit.kernel_cache import folders

    report: dict[str, Any] = {"folder": None, "read": [], "not_usable": []}
    tried = roots.candidates()
    if not tried:
        report["not_usable"].append(_problem(folders.NO_HOME))
    for root in tried:
        try:
            with folders.open_kernels(root) as folder:
                report["read"].append(str(folder.path))
                folder.try_writing()
                sizes = folder.sizes(lambda name: name.endswith(folders.KERNELS))
        except (Untrusted, OSError) as error:
            report["not_usable"].append(_problem(folders.CacheProblem.of(error, root)))
            continue
        return report | {
            "folder": str(folder.path),
            "n_kernels": len(sizes),
            "n_bytes": sum(sizes),
            "disk_free_bytes": shutil.disk_usage(folder.path).free,
        }
    return report


def _problem(problem: "CacheProblem") -> dict[str, str]:
    return {"what": problem.reason, "mend": problem.fix}


def roofline() -> dict[str, Any]:
    """Speed of plain reading by number of threads, and of the kernels with all threads.

    In bytes per second; `dots` (int8 in registers, the limit of `matmul`) and `matmul` in
    operations per second. `share_of_dots`: what each matmul reached of the dots beside it.
    """
    from . import measure

    products = {name: measure.matmul(name) for name in _ROOFLINE_TYPES}
    return {
        "read": {str(n): rate for n, rate in measure.roofline()},
        "matvec": {name: measure.matvec(name) for name in _ROOFLINE_TYPES},
        "attention": {name: measure.attention(name) for name in ("f16", "q8_0", "q4_0")},
        "dots": measure.dot_rate(),
        "matmul": {name: rate for name, (rate, _) in products.items()},
        "share_of_dots": {name: share for name, (_, share) in products.items()},
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
