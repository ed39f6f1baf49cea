"""In the emulator, has `compile` make the kernels outside: `sitecustomize` calls `install`.

python -m lab.arm.ask      names kernels that Numba compiles otherwise in the emulator
"""

from __future__ import annotations

import os
import pickle
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from kvarn.system.terminal import show

ROOT = Path(__file__).resolve().parents[2]
ARM = ROOT / ".arm"
OUTSIDE = "KVARN_ARM_OUTSIDE"
"""A variable of the environment: the Python that runs outside the emulator."""


SAMPLE = (
    ("kvarn.ops.attention.api", "_append", ()),
    ("kvarn.ops.linear.linear", "_get_rows", ("Q4_K",)),
)


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
        payload = _ask((load.__module__, load.__name__, self._parameters, symbol))
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
    words = [os.environ[OUTSIDE], "-m", "lab.arm.compile", variant.CPU, variant.LISTED]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, env=kept | own, cwd=ROOT)


def _ask(order: tuple[Any, ...]) -> bytes:
    process = _compiler()
    assert process.stdin is not None and process.stdout is not None
    pickle.dump(order, process.stdin)
    process.stdin.flush()
    payload = pickle.load(process.stdout)
    assert isinstance(payload, bytes)
    return payload


def main() -> None:
    """Compile some kernels on both sides; print those whose instructions differ."""
    from .compile import compile_kernel

    for module, name, parameters in SAMPLE:
        order = module, name, parameters, "kvarn_kernel"
        if _instructions(compile_kernel(*order)) != _instructions(_ask(order)):
            show(f"{module}.{name}{parameters}")


def _instructions(payload: bytes) -> bytes:
    """Of a kernel's file: names of symbols have numbers that count what a process has compiled."""
    from kvarn.jit.kernel_cache import elf, machine_code

    file = elf.Object(machine_code.from_bytes(payload).object)
    return b"".join(file.content(section) for section in file.sections if section.flags & 4)


if __name__ == "__main__":
    main()
