"""Machine code of kernels, in files that load without Numba. Imports no Numba.

Numba's own files have types, an environment and LLVM IR beside the machine code. One takes some
10 ms to load, and importing Numba takes 350 ms. But a kernel that is called by address returns
nothing and raises nothing, so its machine code is enough. A file `.code` holds the fields of a
`Code`, all integers little-endian:

    offset  bytes
         0      8  "kvarn1.c"
         8     20  five uint32: bytes of `called`, `symbol`, `kinds`; number of `traits`; bytes of
                   `object`
        28      …  called: names of printable ASCII, each followed by a newline
                …  symbol: a name of printable ASCII
                …  kinds: a letter `i` or `f` for each argument
              8 n  traits: n int64
                …  object: of ELF or Mach-O, 64 bits; the end of the file
"""

from __future__ import annotations

import re
from functools import cache
from struct import Struct, error, pack, unpack_from
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import libraries
from ..variant import CPU, LISTED
from . import elf
from .files import Damaged, Unlinkable

if TYPE_CHECKING:
    from llvmlite import binding as llvm

_MAGIC = b"kvarn1.c"
_HEAD = Struct("<8s5I")
_CALLED = re.compile(rb"([!-~]+\n)*")
_SYMBOL = re.compile(rb"[!-~]+")
_KINDS = re.compile(rb"[if]*")
_OBJECTS = (b"\x7fELF\2", b"\xcf\xfa\xed\xfe")

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


def to_bytes(code: Code) -> bytes:
    """The payload of its file."""
    called = "".join(f"{name}\n" for name in code.called).encode()
    symbol, kinds, traits = code.symbol.encode(), code.kinds.encode(), code.traits
    sizes = len(called), len(symbol), len(kinds), len(traits), len(code.object)
    numbers = pack(f"<{len(traits)}q", *traits)
    return b"".join((_HEAD.pack(_MAGIC, *sizes), called, symbol, kinds, numbers, code.object))


def from_bytes(data: bytes) -> Code:
    """The inverse of `to_bytes`. Raises `Damaged` for any other data."""
    try:
        magic, *sizes, n_traits, n_object = _HEAD.unpack_from(data)
        parts, at = list[bytes](), _HEAD.size
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        traits = unpack_from(f"<{n_traits}q", data, at)
    except error as failure:
        raise Damaged(f"a kernel's code: {failure}") from failure
    grammar = zip((_CALLED, _SYMBOL, _KINDS), parts, strict=True)
    is_whole = magic == _MAGIC and len(data) == at + 8 * n_traits + n_object
    machine = data[at + 8 * n_traits :]
    if not (is_whole and all(g.fullmatch(part) for g, part in grammar)):
        raise Damaged("a kernel's code: its fields are not as kvarn writes them")
    if not machine.startswith(_OBJECTS):  # for which LLVM would end the process
        raise Damaged("a kernel's code: it holds no object file")
    called, symbol, kinds = (part.decode("ascii") for part in parts)
    return Code(tuple(called.splitlines()), symbol, kinds, traits, machine)


def load(data: bytes) -> tuple[int, Code]:
    """Link a file's code into this process: its address, and the code.

    Raises `Damaged` for data that kvarn does not write, and `Unlinkable`.
    """
    code = from_bytes(data)
    return link(code), code


def link(code: Code) -> int:
    """Link code into this process for good: its address.

    Raises `Unlinkable` if the process lacks a function that the code calls (LLVM would end the
    process), and `Damaged` if the symbol is missing.
    """
    functions = {name: _address_of(name) for name in code.called}
    _refuse([name for name, address in functions.items() if address is None])
    if elf.can_load(code.object):
        return elf.load(code.object, code.symbol, _address_of)
    from llvmlite import binding as llvm

    for name, address in functions.items():
        llvm.add_symbol(name, address)
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
    engine.finalize_object()
    if not (address := int(engine.get_function_address(code.symbol))):
        raise Damaged(f"a kernel's code: its object file has no {code.symbol}")
    return address


def _address_of(function: str) -> int | None:
    """The address of a function of the process, or of one that LLVM knows."""
    if address := libraries.address_of(function):
        return address
    from llvmlite import binding as llvm

    return llvm.address_of_symbol(function)  # type: ignore[no-any-return]


def _refuse(missing: list[str]) -> None:
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
    passes.run(module, llvm.create_pass_builder(_machine(), llvm.create_pipeline_tuning_options()))
    called = external(module)
    _refuse([function for function in called if function.startswith(_NUMBA)])
    return Code(called, symbol, kinds, traits, _machine().emit_object(module))


def compile_text(text: str, symbol: str) -> Code:
    """The code of a program in LLVM's assembly language."""
    from llvmlite import binding as llvm

    module = llvm.parse_assembly(text)
    return Code(external(module), symbol, "", (), _machine().emit_object(module))


def external(module: llvm.ModuleRef) -> tuple[str, ...]:
    """Names of the functions that a module declares and does not define, without LLVM's own."""
    names = {
        f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")
    }
    return tuple(sorted(names))


@cache
def _machine() -> llvm.TargetMachine:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    reloc = "static" if triple.startswith(("x86", "i686")) else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=CPU, features=LISTED, opt=3, reloc=reloc, codemodel="jitdefault", jit=True
    )


@cache
def _engine() -> llvm.ExecutionEngine:
    """Links object files into this process, and lets LLVM look for functions in all of it."""
    from llvmlite import binding as llvm

    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
