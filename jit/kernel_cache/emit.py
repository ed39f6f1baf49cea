"""Machine code of kernels, as LLVM generates it (`machine_code` has its files). Imports no Numba.

A kernel that is called by address returns nothing and raises nothing, so it needs neither Numba's
types nor its environment.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..variant import CPU, LISTED
from .files import Unlinkable

if TYPE_CHECKING:
    from llvmlite import binding as llvm

# Prefixes of Numba's functions for exceptions, Python objects and memory: a kernel that calls one
# needs Numba. `_ENTRY` removes reference counting, as nothing is in Numba's memory.
_NUMBA = ("Py", "_Py", "NRT_", "numba_")
_ENTRY = """
target triple = "{triple}"
target datalayout = "{layout}"

declare i32 @"{kernel}"(ptr, ptr, i64, i64, i64)

define void @NRT_incref(ptr %object) alwaysinline {{
  ret void
}}

define void @NRT_decref(ptr %object) alwaysinline {{
  ret void
}}

define i64 @{symbol}(i64 %record, i64 %part, i64 %parts) {{
  %result = alloca i64
  %error = alloca ptr
  call i32 @"{kernel}"(ptr %result, ptr %error, i64 %record, i64 %part, i64 %parts)
  ret i64 0
}}
"""


class Code(NamedTuple):
    """One compiled kernel.

    called   functions of the process that the object file calls
    symbol   its only exported function: int64 symbol(int64 record, int64 part, int64 parts)
    kinds    a letter for each word of its arguments (`graph.Kernel`)
    traits   numbers that its callers need, such as how much scratch it takes
    object   the object file
    """

    called: tuple[str, ...]
    symbol: str
    kinds: str
    traits: tuple[int, ...]
    object: bytes


def refuse(missing: list[str]) -> None:
    """Raise `Unlinkable` if functions are missing."""
    if missing:
        raise Unlinkable(f"calls functions that are missing without Numba: {', '.join(missing)}")


def compile_kernel(result: Any, symbol: str, kinds: str, traits: tuple[int, ...]) -> Code:
    """The code of a CompileResult of Numba, as `symbol`. Raises `Unlinkable` if it needs Numba."""
    from llvmlite import binding as llvm

    module = llvm.parse_bitcode(result.library._get_module_for_linking().as_bitcode())
    kernel, layout = result.fndesc.llvm_func_name, module.data_layout
    entry = _ENTRY.format(triple=module.triple, layout=layout, kernel=kernel, symbol=symbol)
    module.link_in(llvm.parse_assembly(entry))
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(
        module, llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options())
    )
    called = external(module)
    refuse([function for function in called if function.startswith(_NUMBA)])
    return Code(called, symbol, kinds, traits, target_machine().emit_object(module))


def compile_text(text: str, symbol: str) -> Code:
    """The code of a program in LLVM's assembly language."""
    from llvmlite import binding as llvm

    module = llvm.parse_assembly(text)
    return Code(external(module), symbol, "", (), target_machine().emit_object(module))


def external(module: llvm.ModuleRef) -> tuple[str, ...]:
    """Names of the functions that a module declares and does not define, without LLVM's own."""
    names = {
        f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")
    }
    return tuple(sorted(names))


@cache
def target_machine() -> llvm.TargetMachine:
    """What generates the code of this process's CPU, for a just-in-time linker."""
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    reloc = "static" if triple.startswith(("x86", "i686")) else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=CPU, features=LISTED, opt=3, reloc=reloc, codemodel="jitdefault", jit=True
    )
