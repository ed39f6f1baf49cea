"""Machine code of steps, which comes back without anything of Numba being rebuilt.

A kernel as Numba keeps it takes some 10 ms to come back, with its types, its environment and LLVM's
form of it. A step is called by address, has no result and raises nothing: its machine code is all
that it needs. So beside the file of its kernel (`cache`) stands one that ends in `.code`, of

    (names of functions it calls in the process, its symbol, an object file)

The object file holds all that is called inside the kernel, and one way in, in C's words:

    int64 kvarn_step_<hash>(int64 record, int64 part, int64 parts)
"""

from functools import cache
from typing import Any

from llvmlite import binding as llvm
from numba.core.registry import cpu_target

from .cache import KernelCache, external

# What has to do with exceptions, objects and memory of Numba: steps with such calls come back as
# other kernels do.
_NUMBA = ("Py", "_Py", "NRT_", "numba_")
_ENTRY = """
target triple = "{triple}"
target datalayout = "{layout}"

declare i32 @"{kernel}"(ptr, ptr, i64, i64, i64)

define i64 @{symbol}(i64 %record, i64 %part, i64 %parts) {{
  %result = alloca i64
  %error = alloca ptr
  call i32 @"{kernel}"(ptr %result, ptr %error, i64 %record, i64 %part, i64 %parts)
  ret i64 0
}}
"""


class StepCache(KernelCache):
    """The files of one step's entry."""

    def address(self, signature: Any) -> int | None:
        """Where its code is, linked into this process; None if it is not kept or not usable."""
        kept = self.kept(self._names(signature)[0])
        if kept is None or any(llvm.address_of_symbol(called) is None for called in kept[0]):
            return None
        _, symbol, code = kept
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return int(engine.get_function_address(symbol))

    def save_overload(self, sig: Any, data: Any) -> None:
        super().save_overload(sig, data)
        name, symbol = self._names(sig)
        module = _module(data, symbol)
        called = external(module)
        if not any(function.startswith(_NUMBA) for function in called):
            self.keep(name, (called, symbol, _machine().emit_object(module)))

    def _names(self, signature: Any) -> tuple[str, str]:
        """Of the file, and of the function in it."""
        stem = self.file_name(signature, _magic()).removesuffix(".kernel")
        return f"{stem}.code", f"kvarn_step_{stem.rpartition('-')[2]}"


def _magic() -> tuple[str, str, str]:
    """LLVM's names of the platform, the CPU and its features, as Numba compiles for them."""
    magic: tuple[str, str, str] = cpu_target.target_context.codegen().magic_tuple()
    return magic


@cache
def _machine() -> llvm.TargetMachine:
    triple, cpu, features = _magic()
    reloc = "static" if triple.startswith(("x86", "i686")) else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc=reloc, codemodel="jitdefault", jit=True
    )


@cache
def _engine() -> llvm.ExecutionEngine:
    """Links object files into this process."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def _module(result: Any, symbol: str) -> llvm.ModuleRef:
    """The compiled kernel with `symbol` as its only way in, and nothing that it does not reach."""
    module = llvm.parse_bitcode(result.library._final_module.as_bitcode())
    kernel = result.fndesc.llvm_func_name
    layout = module.data_layout
    entry = _ENTRY.format(triple=module.triple, layout=layout, kernel=kernel, symbol=symbol)
    module.link_in(llvm.parse_assembly(entry))
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(_machine(), llvm.create_pipeline_tuning_options()))
    return module
