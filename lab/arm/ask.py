"""In the emulator, has `compile` make the kernels outside: `sitecustomize` calls `install`."""

from __future__ import annotations

import os
import pickle
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ARM = ROOT / ".arm"
OUTSIDE = "KVARN_ARM_OUTSIDE"
"""A variable of the environment: the Python that runs outside the emulator."""


def install() -> None:
    """From now on, lazy kernels of this process are compiled outside, and linked and kept here."""
    from kvarn.jit import kernel_cache
    from kvarn.jit.kernel_cache import machine_code
    from kvarn.jit.launch import lazy

    by_numba = lazy.LazyKernel._compile

    def compile_outside(self: lazy.LazyKernel, name: str) -> Any:
        load, symbol = self._load, f"kvarn_kernel_{self._hash}"
        if not load.__module__.startswith("kvarn."):
            return by_numba(self, name)  # a test's own
        payload = ask((load.__module__, load.__name__, self._parameters, symbol))
        address, code = machine_code.load(payload)
        kernel_cache.Counts.compiled += 1
        kernel_cache.keep(name, payload)
        return lazy._Linked(address, code.kinds, code.traits)

    lazy.LazyKernel._compile = compile_outside  # type: ignore[method-assign]


@cache
def _compiler() -> subprocess.Popen[bytes]:
    """The process outside. It ends when this one does, which closes its input."""
    from kvarn.jit import variant

    kept = {name: os.environ[name] for name in ("PATH", "HOME", "KVARN_SIMD") if name in os.environ}
    own = {"KVARN_CACHE": str(ARM / "outside"), "PYTHONPATH": f"{ARM / 'package'}:{ROOT}"}
    own |= {"NUMBA_CPU_NAME": variant.CPU, "NUMBA_CPU_FEATURES": variant.LISTED}
    words = [os.environ[OUTSIDE], "-m", "lab.arm.compile"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, env=kept | own, cwd=ROOT)


def ask(order: tuple[Any, ...]) -> bytes:
    """A kernel compiled outside: `compile.compile_kernel` of `order`."""
    process = _compiler()
    assert process.stdin is not None and process.stdout is not None
    pickle.dump(order, process.stdin)
    process.stdin.flush()
    payload = pickle.load(process.stdout)
    assert isinstance(payload, bytes)
    return payload
