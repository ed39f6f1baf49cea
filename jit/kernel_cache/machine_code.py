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
from typing import TYPE_CHECKING

from .. import libraries
from . import elf
from .emit import Code, refuse, target_machine
from .files import Damaged

if TYPE_CHECKING:
    from llvmlite import binding as llvm

_MAGIC = b"kvarn1.c"
_HEAD = Struct("<8s5I")
_CALLED = re.compile(rb"([!-~]+\n)*")
_SYMBOL = re.compile(rb"[!-~]+")
_KINDS = re.compile(rb"[if]*")
_OBJECTS = (b"\x7fELF\2", b"\xcf\xfa\xed\xfe")


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
    refuse([name for name, address in functions.items() if address is None])
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


@cache
def _engine() -> llvm.ExecutionEngine:
    """Links object files into this process, and lets LLVM look for functions in all of it."""
    from llvmlite import binding as llvm

    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
