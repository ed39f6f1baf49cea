"""Loads the object files of kernels for x86 and ARM on Linux, without LLVM. Imports no Numba.

LLVM writes a kernel as a relocatable ELF file. So loading is: copy the sections that stay in
memory, write the addresses that they refer to (`relocations`), make the memory executable.
Importing LLVM for that would take longer than opening a model. x86's tables for unwinding are left
out: kernels raise nothing. For an object file with other references `can_load` is false, and LLVM
links it.

    memory      section │ section │ … │ veneer │ veneer │ …

Source: System V ABI, "Object Files".
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from functools import cached_property
from struct import Struct
from typing import NamedTuple

from . import relocations
from .files import Damaged, Unlinkable

_FILE = Struct("<16s2HI3QI6H")
_SECTION = Struct("<2I4Q2I2Q")
_SYMBOL = Struct("<I2BH2Q")
_RELOCATION = Struct("<2Qq")
_ELF64 = b"\x7fELF\2\1"
_RELOCATABLE = 1
_MACHINES = {"x86_64": relocations.X86_64, "aarch64": relocations.AARCH64}
_SYMBOLS, _RELOCATIONS, _ZEROS, _UNWIND = 2, 4, 8, 0x70000001
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00

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


class Object:
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

    @cached_property
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
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None or not data.startswith(_ELF64):
        return False
    try:
        file = Object(data)
        is_known = all(
            relocations.can_write(machine, kind) for _, _, kind, _, _ in file.relocations
        )
    except (struct.error, IndexError):
        return False
    writable = any(section.flags & _WRITE for section in file.sections if section.stays)
    return (file.kind, file.machine) == (_RELOCATABLE, machine) and is_known and not writable


def load(data: bytes, symbol: str, address_of: Callable[[str], int | None]) -> int:
    """Load an object file for good: the address of its function `symbol`.

    address_of: the address of a function that it calls, also of those of C that code generation
    adds ("memset"). Raises `Unlinkable` where there is none, and `Damaged` where the file lacks
    `symbol` or is not whole.
    """
    try:
        return _load(Object(data), symbol, address_of)
    except relocations.TooFar as error:
        raise Unlinkable(f"needs LLVM's linker: {error}") from error
    except (struct.error, LookupError, ValueError) as error:
        raise Damaged(f"a kernel's code: its object file is not whole: {error!r}") from error


def _load(file: Object, symbol: str, address_of: Callable[[str], int | None]) -> int:
    placed = LoadedObject(file, address_of)
    memory = mmap.mmap(-1, max(placed.size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[: placed.size] = placed.at(base)
    entry = placed.address(symbol, base)
    # Where the CPU's caches of code and data are apart, Linux makes them agree when pages become
    # executable.
    _protect(base, len(memory))
    _code.append(memory)
    return entry


class LoadedObject:
    """An object file's memory. Raises `Unlinkable`, and errors of a file that is not whole.

    size: bytes, veneers included.
    """

    def __init__(self, file: Object, address_of: Callable[[str], int | None]) -> None:
        self._file = file
        self._places, size = dict[_Section, int](), 0
        for section in filter(lambda section: section.stays, file.sections):
            alignment = max(section.alignment, 1)
            self._places[section] = size = -(-size // alignment) * alignment
            size += section.size
        self._functions = self._called(address_of)
        self._veneers = dict[int, int]()  # the offset of each, by the address that it goes to
        self._branches = relocations.BRANCHES.get(file.machine, frozenset[int]())
        for _, _, kind, number, addend in file.relocations:
            if kind in self._branches and number in self._functions:
                size = -(-size // relocations.VENEER) * relocations.VENEER
                place = self._veneers.setdefault(self._functions[number] + addend, size)
                size += relocations.VENEER * (place == size)
        self.size = size

    def _called(self, address_of: Callable[[str], int | None]) -> dict[int, int]:
        """The functions of the process, by the numbers of their symbols."""
        functions = dict[int, int]()
        for _, _, _, number, _ in self._file.relocations:
            if self._file.symbols[number][3] == _UNDEFINED:
                name = self._file.name(self._file.symbols[number])
                if (called := address_of(name)) is None:
                    raise Unlinkable(f"calls a function that is missing: {name}")
                functions[number] = called
        return functions

    def at(self, base: int) -> bytearray:
        """Its content at an address."""
        memory = bytearray(self.size)
        for section, place in self._places.items():
            if section.type != _ZEROS:
                memory[place : place + section.size] = self._file.content(section)
        for function, place in self._veneers.items():
            memory[place : place + relocations.VENEER] = relocations.veneer(function)
        machine = self._file.machine
        for section, offset, kind, number, addend in self._file.relocations:
            if offset + relocations.size_of(machine, kind) > section.size:
                raise ValueError("an address goes beyond its section")
            if number in self._functions:
                target = self._functions[number] + addend
                if kind in self._branches:
                    target = base + self._veneers[target]
            else:
                target = self._address(self._file.symbols[number], base) + addend
            at = self._places[section] + offset
            relocations.write(memory, at, machine, kind, target, base + at)
        return memory

    def address(self, symbol: str, base: int) -> int:
        """The address of an exported function."""
        symbols = self._file.symbols
        exported = {self._file.name(s): s for s in symbols if s[1] >> 4 and s[3] != _UNDEFINED}
        return self._address(exported[symbol], base)

    def _address(self, entry: tuple[int, ...], base: int) -> int:
        _, _, _, section, value, _ = entry
        if section == _ABSOLUTE:
            return value
        if section >= _RESERVED:
            raise ValueError("a symbol stands in no section")
        return base + self._places[self._file.sections[section]] + value


def _protect(address: int, n_bytes: int) -> None:
    """Allow memory to be executed and no more to be written."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if mprotect(address, n_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "making a kernel's memory executable")
