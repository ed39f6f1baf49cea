"""Numba's compiler, with kernels handed on to their callers as they were before code generation.

Numba makes machine code of every kernel first and links its module into those of its callers
then. Code generation rewrites that module in place: it prepares loops and addresses for one CPU,
base + 64 i becomes an offset `base` from the pointer 64 i. A caller that unrolls such a loop stores
to null + base, which LLVM takes for something that never happens, and it drops what was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding as llvm
from numba.core import codegen, compiler


class Compiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's pipeline; what it compiles on its way, subroutines too, goes into a `Library`."""

    def compile_extra(self, func: Any) -> Any:
        with _libraries(self.state.targetctx.codegen()):
            return super().compile_extra(func)


class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """One kernel's functions. Of its module, callers get a copy that no code was made of."""

    _shared_module: Any

    def _finalize_final_module(self) -> None:
        if self._shared_module is None:  # else: of a file
            shared = self._final_module.clone()
            for function in shared.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = shared
        super()._finalize_final_module()


@contextmanager
def _libraries(target: Any) -> Iterator[None]:
    """Numba's lock of compilers is held: no other thread gets such libraries, or gets Numba's."""
    was = target._library_class
    target._library_class = Library
    try:
        yield
    finally:
        target._library_class = was
