"""Numba's compiler, changed in three ways. `cached` has the decorator that uses it.

**Parts.** A kernel that is compiled because another one calls it is a part of that one. Its callers
need LLVM's IR alone, so it gets neither wrappers for Python nor machine code of its own. If Python
calls it later, it is compiled again, as a kernel.

**One optimisation.** Numba optimises the LLVM module of a function, and again that of each caller,
which contains it. Here a part is optimised in its kernel alone. Large kernels compile in two thirds
of the time.

**IR for callers.** Numba generates machine code for a kernel and then links the same LLVM module
into the kernel's callers. But code generation rewrites the module: to suit one CPU, the address
base + 64 i becomes an offset of `base` from the pointer 64 i. Where a caller unrolls that loop, its
first iteration stores to null + base. LLVM takes that for code that never runs, and removes the
store. So callers get a copy from before code generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding as llvm
from numba.core import codegen, compiler, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from . import kernel_cache

_depth = 0
"""Kernels that are being compiled, each as a part of the one before it."""


def in_kernel() -> bool:
    """Whether what is compiled or loaded now is a part of another kernel."""
    return _depth > 0


@contextmanager
def parts() -> Iterator[None]:
    """In the block, kernels are compiled as parts."""
    global _depth  # noqa: PLW0603  Numba's compiler lock is held, so no other thread compiles now
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def compile_part(dispatcher: Any, signature: tuple[Any, ...]) -> Any:
    """Numba's CompileResult of a kernel as a part, which is optimised and not kept."""
    with global_compiler_lock, parts():
        kernel_cache.Counts.compiled += 1
        result = dispatcher._compiler.compile(signature, None)
        result.library.optimise_part()
        return result


class Part:
    """Stands for a part where Numba expects the function that Python calls."""


class Compiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's pipeline; each kernel that it compiles, callees included, is a `Library`."""

    def compile_extra(self, func: Any) -> Any:
        name, context = f"{func.__module__}.{func.__name__}", self.state.targetctx
        flags = self.state.flags
        if in_kernel():
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        with kernel_cache.compiling(name), _libraries(context.codegen()), parts():
            result = super().compile_extra(func)
        return part(result) if in_kernel() else result


def part(result: Any) -> Any:
    """The CompileResult of a part, known to Numba as one that kernels can call."""
    entry = Part()
    result.library.is_part = True
    result.library.finalize()
    result.target_context.insert_user_function(entry, result.fndesc, [result.library])
    return result._replace(entry_point=entry)


def reduced(result: Any) -> tuple[Any, ...]:
    """What `rebuild` needs of a CompileResult, to be pickled."""
    if not _is_part(result):
        return tuple(result._reduce())
    result.fndesc.typemap = result.fndesc.calltypes = None
    return result.library.name, result.library.bitcode(), result.fndesc, result.signature


def rebuild(target_context: Any, *reduced: Any) -> Any:
    """The CompileResult of a kernel or of a part."""
    if len(reduced) > 4:
        return compiler.CompileResult._rebuild(target_context, *reduced)
    name, bitcode, fndesc, signature = reduced
    return compiler.compile_result(
        typing_context=target_context.typing_context,
        target_context=target_context,
        entry_point=Part(),
        library=Library.of_bitcode(target_context.codegen(), name, bitcode),
        fndesc=fndesc,
        signature=signature,
        objectmode=False,
        lifted=(),
        reload_init=(),
    )


class Dispatcher(CPUDispatcher):  # type: ignore[misc]
    """Numba's dispatcher, which keeps parts from Python."""

    def compile(self, sig: Any) -> Any:
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        if not in_kernel() and _is_part(self.overloads.get(arguments)):
            del self.overloads[arguments]
        return super().compile(sig)

    def add_overload(self, cres: Any) -> None:
        if _is_part(cres):
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)


def _is_part(result: Any) -> bool:
    return result is not None and isinstance(result.entry_point, Part)


class Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """One kernel's LLVM module. Callers get a copy from before code generation, which begins when
    something asks for an address."""

    _shared_module: Any
    is_part = _has_code = False

    def _optimize_final_module(self) -> None:
        if not self.is_part:
            super()._optimize_final_module()

    def optimise_part(self) -> None:
        """Optimise the module of a part, with its own parts: there will be no caller's."""
        super()._optimize_final_module()
        self._shared_module = self._final_module

    def _finalize_final_module(self) -> None:
        if self._shared_module is None:  # else it was loaded from a file
            shared = self._final_module.clone()
            for function in shared.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = shared
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def bitcode(self) -> bytes:
        """The module for callers."""
        return bytes(self._shared_module.as_bitcode())

    @classmethod
    def of_bitcode(cls, target: Any, name: str, bitcode: bytes) -> Library:
        """The library of a part, for callers alone."""
        library = cls(target, name)
        library._shared_module = library._final_module = llvm.parse_bitcode(bitcode)
        library._finalized = True
        return library

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        if not self._has_code:
            self._has_code = True
            super()._finalize_final_module()
        return int(super().get_pointer_to_function(name))


@contextmanager
def _libraries(target: Any) -> Iterator[None]:
    """Have Numba make `Library`s. Its compiler lock is held, so no other thread compiles now."""
    was = target._library_class
    target._library_class = Library
    try:
        yield
    finally:
        target._library_class = was
