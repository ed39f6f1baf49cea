"""The assembly of a kernel for another CPU than this one, for tests to look at.

    asm = lower(kernel, (types.int64, types.int64), "neon")
    assert "sdot" in asm

Numba compiles only for the CPU it runs on. So a child process, one for each CPU, imports kernels
with the other variant chosen, takes the LLVM IR that Numba emits, and has LLVM lower it.
"""

import base64
import gc
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Target:
    """A CPU as LLVM names it, and the variant of the kernels that it runs."""

    triple: str
    cpu: str
    features: str
    variant: str


TARGETS = {
    "avx512": Target("x86_64-unknown-linux-gnu", "icelake-server", "+avx512bitalg", "avx512"),
    "avx512-2019": Target("x86_64-unknown-linux-gnu", "cascadelake", "", "avx512"),
    "avx2": Target("x86_64-unknown-linux-gnu", "haswell", "", "avx2"),
    "avx2-vnni": Target("x86_64-unknown-linux-gnu", "alderlake", "+avxvnni", "avx2"),
    "neon": Target("aarch64-linux-gnu", "neoverse-n1", "+neon,+dotprod,+fullfp16", "neon"),
    "neon-i8mm": Target("aarch64-linux-gnu", "neoverse-v1", "+neon,+dotprod,+i8mm", "neon"),
    "generic-arm": Target("aarch64-linux-gnu", "cortex-a72", "+neon", "generic"),
    "generic-riscv": Target("riscv64-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+v", "generic"),
}


def lower(kernel: Any, signature: Sequence[Any], target: str | Target) -> str:
    """Assembly of a jitted module-level function for argument types `signature`.

    kernel: a dispatcher that the child process can find by its module, file and name.
    Raises RuntimeError with what the child says if the kernel cannot be lowered.
    """
    goal = TARGETS[target] if isinstance(target, str) else target
    python, child = kernel.py_func, _child(goal)
    where = python.__module__, python.__code__.co_filename, python.__name__
    assert child.stdin is not None and child.stdout is not None
    print(_text((*where, tuple(signature))), file=child.stdin, flush=True)
    answer = json.loads(child.stdout.readline() or '{"error": "the child has ended"}')
    if "error" in answer:
        raise RuntimeError(f"lowering {python.__name__} for {goal}: {answer['error'][-2000:]}")
    return str(answer["assembly"])


@cache
def _child(goal: Target) -> subprocess.Popen[str]:
    """The process that lowers all kernels for a CPU; it ends with this one."""
    environment = {k: v for k, v in os.environ.items() if k != "KVARN_SIMD"}
    return subprocess.Popen(
        [sys.executable, __file__, _text(astuple(goal))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _text(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _main(goal_text: str) -> None:
    gc.disable()  # Numba makes much that stays
    from kvarn.jit import variant

    goal = Target(*pickle.loads(base64.b64decode(goal_text)))
    listed = frozenset(f[1:] for f in goal.features.split(",") if f.startswith("+"))
    variant.pretend(goal.variant, listed)  # before Numba's types are unpickled
    from kvarn.jit.kernel_cache import sources

    sources._digests = dict  # nothing is kept, so no folder of this CPU is made
    found = _emitted()
    for line in sys.stdin:
        try:
            module, file, name, signature = pickle.loads(base64.b64decode(line))
            kernel = getattr(_load(module, file), name)
            found.clear()
            kernel.compile(signature)
            kernel.overloads.clear()  # so that it can be asked for again
            answer = {"assembly": "\n".join(_assembly(ir, goal) for ir in found)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _load(module: str, file: str) -> ModuleType:
    """The module; a test's folders are packages here, as they are in pytest."""
    if not module.startswith("kvarn."):
        names, folder = module.split("."), Path(file).parent
        for n in range(len(names) - 1, 0, -1):
            package = ModuleType(".".join(names[:n]))
            package.__path__ = [str(folder)]
            sys.modules[package.__name__] = package
            folder = folder.parent
    return import_module(module)


def _emitted() -> list[str]:
    """The list to which LLVM IR is added of each kernel that is compiled from now on, and of its
    parallel regions, before code generation."""
    from numba.core import codegen, cpu, dispatcher

    from kvarn.jit import cached, compiler

    # Numba is changed for good here: this process serves no other purpose.
    kernel_cache: Any = cached.KernelCache
    dispatchers: Any = dispatcher.Dispatcher
    # Numba tells kernels with the same argument types apart by address, so each gets one.
    places = count(1)
    found: list[str] = []
    codegen.JITCPUCodegen._add_module = lambda self, module: None
    codegen.JITCodeLibrary._finalize_specific = lambda self: None
    codegen.JITCodeLibrary.get_pointer_to_function = lambda self, name: 0
    library: Any = compiler.Library
    finalize = library._finalize_final_module

    def keep(self: Any) -> None:
        finalize(self)
        if not self.is_part:  # parts are in their kernel
            found.append(self.get_llvm_str())

    def entry(self: Any, library: Any, *_: Any) -> int:
        library._ensure_finalized()
        return next(places)

    library._finalize_final_module = keep
    cpu.CPUContext.get_executable = entry
    kernel_cache.load_overload = lambda self, sig, context: None
    kernel_cache.save_overload = lambda self, sig, data: None
    dispatchers._insert = lambda self, *args, **kwargs: None
    return found


def _assembly(text: str, goal: Target) -> str:
    from llvmlite import binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(goal.triple).create_target_machine(
        cpu=goal.cpu, features=goal.features, opt=3
    )
    text = re.sub(r'^target (triple|datalayout) = ".*"$', "", text, flags=re.MULTILINE)
    text = re.sub(r'"target-(cpu|features)"="[^"]*"', "", text)
    module = llvm.parse_assembly(text)
    module.triple = goal.triple
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


if __name__ == "__main__":
    _main(*sys.argv[1:])
