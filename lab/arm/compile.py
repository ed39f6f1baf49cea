"""Compiles kernels for ARM on x86-64, for the CPU that the environment names.

`ask` starts it, inside the emulator, where the same LLVM would take fifty times as long. Messages
are pickles: (module, name, parameters, symbol) of a lazy kernel in, the payload of its file out.
What Numba compiles for another CPU is never run here.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
from importlib import import_module
from typing import Any

from llvmlite import binding as llvm

TRIPLE = "aarch64-unknown-linux-gnu"


def pretend() -> None:
    """Have kvarn and Numba compile for ARM. Call it before kvarn's rooms are imported."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = llvm.get_default_triple = lambda: TRIPLE
    platform.machine = lambda: "aarch64"


def compile_kernel(module: str, name: str, parameters: tuple[Any, ...], symbol: str) -> bytes:
    """The payload of the file of a lazy kernel."""
    from kvarn.jit.kernel_cache import machine_code

    named: Any = getattr(import_module(module), name)
    load = named.__wrapped__ if parameters else named._load
    return machine_code.to_bytes(load(*parameters).code(symbol))


def main() -> None:
    """Answer until the input ends."""
    pretend()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed
    while True:
        try:
            order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(compile_kernel(*order), answers)
        answers.flush()


if __name__ == "__main__":
    main()
