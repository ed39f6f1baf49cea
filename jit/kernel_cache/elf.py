"""Loads the object files of kernels for x86 on Linux, without LLVM. Imports no Numba.

LLVM writes a kernel as a relocatable ELF file whose only references are absolute addresses of
64 bits (`R_X86_64_64`, which the code model of its JIT compilers uses for all). So loading is: copy
the sections that stay in memory, write these addresses, make the memory executable. Importing LLVM
for that would take longer than opening a model. Tables for unwinding are left out: kernels raise
nothing. For any other object file `can_load` is false, and LLVM links it.

Source: System V ABI, "Object Files", and its AMD64 supplement, "Relocation".
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from .files import Damaged, Unlinkable

_FILE = Struct("<16s2HI3QI6H")
_SECTION = Struct("<2I4Q2I2Q")
_SYMBOL = Struct("<I2BH2Q")
_RELOCATION = Struct("<2Qq")
_ELF64 = b"\x7fELF\2\1"
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _ZEROS, _UNWIND = 2, 4, 8, 0x70000001
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_ADDRESS_64 = 1  # R_X86_64_64

_code: list[mmap.mmap] = []
"""The memory of all kernels, which stays until the process ends."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int

    @property
    def stays(self) -> bool:
        """Whether kernels need it in memory."""
        return bool(self.flags & _ALLOC) and self.type != _UNWIND


class _Object:
    """The sections, symbols and relocations of an object file. Raises `struct.error`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        fields = _FILE.unpack_from(data)
        self.kind, self.machine = fields[1], fields[2]
        first, size, n = fields[6], fields[11], fields[12]
        self.sections = [_Section(*_SECTION.unpack_from(data, first + size * i)) for i in range(n)]
        tables = [section for section in self.sections if section.type == _SYMBOLS]
        self.symbols = self._entries(_SYMBOL, tables[0]) if len(tables) == 1 else []
        self.names = self.sections[tables[0].link] if self.symbols else None

    def _entries(self, entry: Struct, table: _Section) -> list[tuple[int, ...]]:
        return list(entry.iter_unpack(self.content(table)))

    def content(self, section: _Section) -> bytes:
        content = self.data[section.offset : section.offset + section.size]
        if len(content) != section.size:
            raise struct.error("a section goes beyond the end")
        return content

    def relocations(self) -> list[tuple[_Section, int, int, int, int]]:
        """Of sections that stay: the section, an offset, the type, the symbol, the addend."""
        return [
            (target, offset, info & 0xFFFFFFFF, info >> 32, addend)
            for table in self.sections
            if table.type == _RELOCATIONS and (target := self.sections[table.info]).stays
            for offset, info, addend in self._entries(_RELOCATION, table)
        ]

    def name(self, symbol: tuple[int, ...]) -> str:
        assert self.names is not None
        begin = self.names.offset + symbol[0]
        return self.data[begin : self.data.index(b"\0", begin)].decode("ascii")


def can_load(data: bytes) -> bool:
    """Whether `load` can load an object file in this process."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or not data.startswith(_ELF64):
        return False
    try:
        file = _Object(data)
        is_plain = all(kind == _ADDRESS_64 for _, _, kind, _, _ in file.relocations())
    except (struct.error, IndexError):
        return False
    writable = any(section.flags & _WRITE for section in file.sections if section.stays)
    return (file.kind, file.machine) == (_RELOCATABLE, _X86_64) and is_plain and not writable


def load(data: bytes, symbol: str, address_of: Callable[[str], int | None]) -> int:
    """Load an object file for good: the address of its function `symbol`.

    address_of: the address of a function that it calls, also of those of C that code generation
    adds ("memset"). Raises `Unlinkable` where there is none, and `Damaged` where the file lacks
    `symbol` or is not whole.
    """
    try:
        return _load(_Object(data), symbol, address_of)
    except (struct.error, LookupError, ValueError) as error:
        raise Damaged(f"a kernel's code: its object file is not whole: {error!r}") from error


def _load(file: _Object, symbol: str, address_of: Callable[[str], int | None]) -> int:
    places, size = dict[_Section, int](), 0
    for section in filter(lambda section: section.stays, file.sections):
        alignment = max(section.alignment, 1)
        places[section] = size = -(-size // alignment) * alignment
        size += section.size
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for section, place in places.items():
        if section.type != _ZEROS:
            memory[place : place + section.size] = file.content(section)

    def address(entry: tuple[int, ...]) -> int:
        _, _, _, section, value, _ = entry
        if section == _UNDEFINED:
            name = file.name(entry)
            if (called := address_of(name)) is None:
                raise Unlinkable(f"calls a function that is missing: {name}")
            return called
        if section == _ABSOLUTE:
            return value
        if section >= _RESERVED:
            raise ValueError("a symbol stands in no section")
        return base + places[file.sections[section]] + value

    for section, offset, _, number, addend in file.relocations():
        if offset + 8 > section.size:
            raise ValueError("an address goes beyond its section")
        value = (address(file.symbols[number]) + addend) & 0xFFFFFFFFFFFFFFFF
        struct.pack_into("<Q", memory, places[section] + offset, value)
    exported = {file.name(s): s for s in file.symbols if s[1] >> 4 and s[3] != _UNDEFINED}
    entry = address(exported[symbol])
    _protect(base, len(memory))
    _code.append(memory)
    return entry


def _protect(address: int, n_bytes: int) -> None:
    """Allow memory to be executed and no more to be written."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if mprotect(address, n_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "making a kernel's memory executable")
