"""python -m lab.arm.instructions: names kernels that Numba compiles otherwise in the emulator."""

from __future__ import annotations

from kvarn.system.terminal import show

from .ask import ask
from .compile import compile_kernel

SAMPLE = (
    ("kvarn.ops.attention.api", "_append", ()),
    ("kvarn.ops.linear.linear", "_get_rows", ("Q4_K",)),
)


def main() -> None:
    """Compile some kernels on both sides; print those whose instructions differ."""
    for module, name, parameters in SAMPLE:
        order = module, name, parameters, "kvarn_kernel"
        if _instructions(compile_kernel(*order)) != _instructions(ask(order)):
            show(f"{module}.{name}{parameters}")


def _instructions(payload: bytes) -> bytes:
    """Of a kernel's file: names of symbols have numbers that count what a process has compiled."""
    from kvarn.jit.kernel_cache import elf, machine_code

    file = elf.Object(machine_code.from_bytes(payload).object)
    return b"".join(file.content(section) for section in file.sections if section.flags & 4)


if __name__ == "__main__":
    main()
