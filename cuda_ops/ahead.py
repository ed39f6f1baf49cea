"""Compile every kernel for GPUs that are not there, and tell what they will need of one.

    python -m kvarn.cuda_ops.ahead 80 86 89 90 120      a row for each kernel and target
    python -m kvarn.cuda_ops.ahead gfx1100 --only Q4    AMD; kernels whose name matches Q4
    python -m kvarn.cuda_ops.ahead 89 --parse           only whether Triton's language takes them

Registers of a thread, bytes spilled, shared memory, threads that a multiprocessor holds, how wide
global loads are, instructions of the longest loop (of all, where there is none) and of a weight,
signature or row. Needs no GPU, no driver and no CUDA toolkit: Triton brings its compiler, `ptxas`
and `nvdisasm`. Exits with 1 where a kernel spills that must not.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # which would replace what is compiled here

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.knobs import nvidia
from triton.runtime.jit import create_function_from_signature

from ..system.terminal import show
from .cases import Case, all_cases

TARGETS = ("80", "86", "89", "90", "120")

# Registers, threads, KiB of shared memory and programs of a multiprocessor: CUDA C++ Programming
# Guide, table of technical specifications per compute capability.
SM = {
    "75": (65536, 1024, 64, 16), "80": (65536, 2048, 164, 32), "86": (65536, 1536, 100, 16),
    "89": (65536, 1536, 100, 24), "90": (65536, 2048, 228, 32), "120": (65536, 1536, 100, 24),
}  # fmt: skip


@dataclass(frozen=True)
class Needs:
    """What a compiled kernel needs of a GPU; 0 where the target does not tell."""

    case: Case
    target: str
    registers: int
    spilled: int
    shared: int
    threads: int
    loads: str
    loop: int
    seconds: float

    @property
    def per_weight(self) -> float:
        """Instructions that are issued for each weight, signature or row that is read."""
        return self.loop * 32 * self.case.warps / self.case.per_step if self.case.per_step else 0.0

    @property
    def spills(self) -> bool:
        return self.spilled > 0 and self.target not in self.case.may_spill


def _target(name: str) -> GPUTarget:
    if name.startswith("gfx"):
        return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
    return GPUTarget("cuda", int(name), 32)


def _source(case: Case, backend: Any) -> tuple[ASTSource, Any]:
    """What the kernel is compiled from, and its options, as Triton finds them at a launch."""
    kernel, given = case.kernel, {**case.options, "debug": False, "instrumentation_mode": ""}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialised, options = bind(*case.arguments, **given)
    options, *parts = kernel._pack_args(backend, given, bound, specialised, options)
    return ASTSource(kernel, *parts), options


def compiled(case: Case, target: str) -> Any:
    """The kernel for a target: `asm["ptx"]`, `asm["cubin"]`, `metadata.shared`."""
    source, options = _source(case, make_backend(_target(target)))
    return triton.compile(source, target=_target(target), options=options.__dict__)


def parse(case: Case, target: str) -> None:
    """Translate a kernel into Triton's first representation, where types and shapes are checked.

    A tenth of the time of `compiled`. Raises Triton's errors.
    """
    backend, context = make_backend(_target(target)), ir.context()
    source, options = _source(case, backend)
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(
        _target(target), options, backend.get_codegen_implementation(options),
        backend.get_module_map(), context,
    )  # fmt: skip


def _run(tool: str, *arguments: object) -> str:
    done = subprocess.run([tool, *map(str, arguments)], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def _assembled(case: Case, ptx: str, capability: int) -> tuple[int, int, int]:
    """Registers of a thread, bytes spilled, instructions of the longest loop or of all."""
    ptxas = nvidia.ptxas_blackwell.path if capability >= 100 else nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        arch = f"sm_{capability}{'a' if capability >= 90 else ''}"
        fuses = f"--fmad={'true' if case.fuses else 'false'}"
        report = _run(ptxas, "-v", fuses, f"--gpu-name={arch}", source, "-o", binary)
        code = _run(nvidia.nvdisasm.path, "-c", binary)
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", report))
    return int(re.findall(r"Used (\d+) registers", report)[0]), spilled, _longest_loop(code)


def _longest_loop(code: str) -> int:
    """Instructions of the longest loop; of all where nothing jumps back."""
    labels: dict[str, int] = {}
    n = longest = 0
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = n
        elif re.match(r"\s*/\*[0-9a-f]+\*/", line):
            n += 1
            back = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
            if back and labels.get(back[1], n) < n - 1:
                longest = max(longest, n - labels[back[1]])
    return longest or n


def _loads(ptx: str) -> str:
    """Loads from global memory by their width in bytes."""
    loads: Counter[int] = Counter()
    for how in re.findall(r"ld\.global([.\w:]*)", ptx):
        lanes, bits = re.search(r"\.v(\d)", how), re.search(r"\.[busf](\d+)", how)
        if bits:
            loads[int(lanes[1] if lanes else 1) * int(bits[1]) // 8] += 1
    for size in re.findall(r"cp\.async\.c[ag]\.shared\.global.*?, (0x[0-9a-f]+|\d+)", ptx):
        loads[int(size, 0)] += 1
    return " ".join(f"{n}×{width}" for width, n in sorted(loads.items(), reverse=True))


def _nvidia(case: Case, target: str) -> Needs:
    began, capability = time.perf_counter(), int(target)
    kernel = compiled(case, target)
    ptx, shared = kernel.asm["ptx"], kernel.metadata.shared
    registers, spilled, loop = _assembled(case, ptx, capability)
    file, threads, kib, programs = SM[target]
    size = 32 * case.warps
    fits = min(
        file // (-(-registers // 8) * 8 * size),
        threads // size,
        1024 * kib // (shared + 1024),
        programs,
    )
    seconds = time.perf_counter() - began
    return Needs(case, target, registers, spilled, shared, fits * size, _loads(ptx), loop, seconds)


def _amd(case: Case, target: str) -> Needs:
    began = time.perf_counter()
    kernel = compiled(case, target)
    code = kernel.asm["amdgcn"]
    registers, spilled = (
        int(re.findall(rf"\.{name}:\s+(\d+)", code)[0])
        for name in ("vgpr_count", "vgpr_spill_count")
    )
    loads, seconds = f"{code.count('load_b128')}×16", time.perf_counter() - began
    return Needs(case, target, registers, spilled, kernel.metadata.shared, 0, loads, 0, seconds)


def chosen(targets: Sequence[str], only: str = "") -> Iterator[tuple[Case, str]]:
    """Each kernel whose name matches the pattern `only`, with each target that launches it."""
    for case in all_cases():
        for target in targets if re.search(only, case.name) else ():
            if not case.only or target in case.only:
                yield case, target


def compile_all(targets: Sequence[str] = TARGETS, only: str = "") -> Iterator[Needs]:
    """Compile each kernel whose name matches the pattern `only` for each target that launches it.

    Targets: compute capabilities without their point ("89"), or AMD's architectures ("gfx1100").
    What is compiled lies in Triton's cache afterwards.
    """
    for case, target in chosen(targets, only):
        yield (_amd if target.startswith("gfx") else _nvidia)(case, target)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvarn.cuda_ops.ahead")
    parser.add_argument("targets", nargs="*", default=["89"])
    parser.add_argument("--only", default="", help="kernels whose name matches this pattern")
    parser.add_argument("--parse", action="store_true", help="check types and shapes alone")
    options = parser.parse_args(arguments)
    if options.parse:
        for case, target in chosen(options.targets, options.only):
            show(f"{case.name}, {target}")
            parse(case, target)
        return 0
    show("| kernel | target | registers | spilled | shared | threads/SM | loads × bytes "
          "| loop | a weight, row | s |")  # fmt: skip
    show("|---|---|---:|---:|---:|---:|---|---:|---:|---:|")
    failed = False
    for n in compile_all(options.targets, options.only):
        failed |= n.spills
        a_weight = f"{n.per_weight:.2f}" if n.per_weight else "–"
        cells = (
            n.case.name, n.target, n.registers, n.spilled, n.shared, n.threads or "–", n.loads,
            n.loop or "–", a_weight, f"{n.seconds:.1f}",
        )  # fmt: skip
        show(f"| {' | '.join(map(str, cells))} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
