"""Kernels of a bundle, compiled ahead for CPUs with AVX2 and with AVX-512.

Kernels of other models than those named are compiled on first use.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ....jit import kernel_cache, variant
from ....jit.bundled import Target
from ..build import BuildError

ALL, DENSE, NONE = "all", "dense", "none"
CHOICES = {
    ALL: "all methods with a KV cache of f16, full attention with each other type",
    DENSE: "full attention with a KV cache of f16",
    NONE: "none: all are compiled on first use",
}

_V3 = (
    "64bit avx avx2 bmi bmi2 cmov cx16 cx8 f16c fma fxsr lzcnt mmx movbe popcnt sahf sse sse2 sse3 "
    "sse4.1 sse4.2 ssse3 xsave"
).split()
_V4 = [*_V3, *"avx512bw avx512cd avx512dq avx512f avx512vl avx512vnni".split()]


def _listed(features: Sequence[str]) -> str:
    return ",".join(f"+{name}" for name in features)


X86 = [Target("x86-64-v4", _listed(_V4)), Target("x86-64-v3", _listed(_V3))]
"""CPUs of 2019 and of 2013 on, best first."""


def targets() -> list[Target]:
    """The CPUs to compile for, best first: on x86 those of `X86`, elsewhere this one."""
    if platform.machine() == "x86_64":
        return X86
    return [Target(variant.CPU, _listed(sorted(variant.FEATURES)))]


def compile_ahead(
    bundled: Path, which: str, models: Sequence[Path], say: Callable[[str], None]
) -> None:
    """Compile into the folder `bundled`, one process for each CPU.

    They keep their kernels in a folder of the kernel cache, so that the next bundle need not wait.
    """
    if which == NONE:
        return
    cache = kernel_cache.place()
    if cache is None:
        raise BuildError("bundling libkvarn: compiled kernels cannot be kept: see `kvarn doctor`")
    key = repr((which, *(str(path.resolve()) for path in models)))
    root = cache.parents[1] / "bundles" / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    words = [f"{__package__}.rehearse", which, *map(str, [bundled, *models])]
    for_all_targets(targets(), words, bundled, root, say)


def for_all_targets(
    all_targets: Sequence[Target],
    module: Sequence[str],
    bundled: Path,
    root: Path,
    say: Callable[[str], None],
) -> None:
    """Run a module with its words in a process for each CPU, which compiles into `bundled`.

    root: where they keep their kernels meanwhile. Raises `BuildError` where one fails.
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-m", *module],
            env=os.environ | _environment(target, root),
            stdout=subprocess.PIPE,
            text=True,
        )
        for target in all_targets
    ]
    outputs = [process.communicate()[0] for process in running]
    for target, process, text in zip(all_targets, running, outputs, strict=True):
        if process.returncode:
            raise BuildError(f"compiling kernels for {target.cpu} failed")
        for line in text.splitlines():
            say(f"{target.cpu}: {line}")
    (bundled / "targets.json").write_text(json.dumps(all_targets))


def _environment(target: Target, root: Path) -> dict[str, str]:
    """Chooses the CPU of a process, and the folder of its kernels."""
    return {
        "NUMBA_CPU_NAME": target.cpu,
        "NUMBA_CPU_FEATURES": target.features,
        "KVARN_CACHE": str(root),
    }
