"""Numba's compiler, changed to link kernels into their callers as they were before code generation.

Numba generates machine code for a kernel and then links the same LLVM module into the kernel's
callers. But code generation rewrites the module: to suit one CPU, the address base + 64 i becomes
an offset of `base` from the pointer 64 i. Where a caller unrolls that loop, its first iteration
stores to null + base. LLVM takes that for code that never runs, and removes the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding as llvm
from numba.core import codegen, compiler

from .kernel_cache import compiling


class Compiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's pipeline; each kernel that it compiles, callees included, is a `Library`."""

    def compile_extra(self, func: Any) -> Any:
        name = f"{func.__module__}.{func.__name__}"
        with compiling(name), _libraries(self.state.targetctx.codegen()):
            return super().compile_extra(func)


class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """One kernel's LLVM module; callers get a copy from before code generation."""

    _shared_module: Any

    def _finalize_final_module(self) -> None:
        if self._shared_module is None:  # else it was loaded from a file
            shared = self._final_module.clone()
            for function in shared.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = shared
        super()._finalize_final_module()


@contextmanager
def _libraries(target: Any) -> Iterator[None]:
    """Have Numba make `Library`s. Its compiler lock is held, so no other thread compiles now."""
    was = target._library_class
    target._library_class = Library
    try:
        yield
    finally:
        target._library_class = was
