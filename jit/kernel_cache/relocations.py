"""References in an object file, and how the address that one means is written. Imports no Numba.

S is the address of a symbol, A the addend, P the place that is written, Page(x) = x & ~0xFFF:

    x86-64      ABS64                   64 bits      S + A
    AArch64     ABS64                   64 bits      S + A
                PREL64, PREL32          64, 32 bits  S + A - P
                MOVW_UABS_G0 … G3       bits 5-20    16 bits of S + A
                ADR_PREL_PG_HI21        bits 5-23,   (Page(S + A) - Page(P)) >> 12, lowest two bits
                                        29-30        in 29-30
                ADD_ABS_LO12_NC         bits 10-21   (S + A) & 0xFFF
                LDST8 … LDST128_…       bits 10-21   the same, in units of what is loaded
                JUMP26, CALL26          bits 0-25    (S + A - P) >> 2

A branch of AArch64 reaches 128 MB. One to a function of the process goes by way of a `veneer`,
which loads the address from memory behind it.

Source: System V ABI, AMD64 supplement; ELF for the Arm 64-bit Architecture (AAELF64).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import NamedTuple

X86_64, AARCH64 = 62, 183
"""Machines of ELF files."""
_JUMP26, _CALL26 = 282, 283
BRANCHES = {AARCH64: frozenset({_JUMP26, _CALL26})}
"""By machine, the types of relocations that may need a veneer."""
VENEER = 16
"""Bytes of a veneer, and its alignment."""

_PAGE = 12


class TooFar(ValueError):
    """A reference reaches further than its instruction can say."""


class _Field(NamedTuple):
    """How one type of relocation is written.

    size   bytes that are read and written
    value  what is written, by S + A and P; of it, the lowest `bits` bits
    bits   None: all of the word, which is replaced
    shift  the place of the lowest of these bits
    """

    size: int
    value: Callable[[int, int], int]
    bits: int | None = None
    shift: int = 0


def veneer(address: int) -> bytes:
    """Code of AArch64 that goes on at an address: ldr x16, [pc + 8]; br x16; the address."""
    return pack("<2IQ", 0x58000050, 0xD61F0200, address)


def can_write(machine: int, kind: int) -> bool:
    """Whether `write` knows this type of relocation."""
    return kind in _FIELDS.get(machine, ())


def size_of(machine: int, kind: int) -> int:
    """The bytes that `write` changes."""
    return _FIELDS[machine][kind].size


def write(memory: bytearray, at: int, machine: int, kind: int, target: int, place: int) -> None:
    """Write a reference to `target` (S + A) to memory[at:], which is or will be at address `place`.

    Raises `TooFar` where the instruction cannot reach the target.
    """
    field = _FIELDS[machine][kind]
    value, whole = field.value(target, place), memory[at : at + field.size]
    if field.bits is None:
        word = value & (1 << 8 * field.size) - 1
    else:
        mask = (1 << field.bits) - 1 << field.shift
        if kind == _ADR_PAGE:  # the only field in two parts
            mask, value = 0x60FFFFE0, (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5
        else:
            value <<= field.shift
        word = int.from_bytes(whole, "little") & ~mask | value & mask
    memory[at : at + field.size] = word.to_bytes(field.size, "little")


def _absolute(target: int, place: int) -> int:
    return target


def _relative(target: int, place: int) -> int:
    return target - place


def _relative_32(target: int, place: int) -> int:
    return _in_reach(target - place, 31)


def _pages(target: int, place: int) -> int:
    return _in_reach((target >> _PAGE) - (place >> _PAGE), 20)


def _branch(target: int, place: int) -> int:
    return _in_reach(target - place, 27) >> 2


def _in_reach(distance: int, bits: int) -> int:
    if not -1 << bits <= distance < 1 << bits:
        raise TooFar(f"a reference over {distance} bytes or pages")
    return distance


def _part(n: int) -> Callable[[int, int], int]:
    return lambda target, place: target >> 16 * n


def _in_page(scale: int) -> Callable[[int, int], int]:
    """The place in a page, in units of 2**scale bytes."""
    return lambda target, place: (target & 0xFFF) >> scale


_ADR_PAGE = 275
_PARTS = {264: 0, 266: 1, 268: 2, 269: 3}  # MOVW_UABS_G0_NC, _G1_NC, _G2_NC, _G3
_SCALES = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD, LDST8, 16, 32, 64, 128
_FIELDS = {
    X86_64: {1: _Field(8, _absolute)},
    AARCH64: {
        257: _Field(8, _absolute),
        260: _Field(8, _relative),
        261: _Field(4, _relative_32),
        _ADR_PAGE: _Field(4, _pages, 21),
        _JUMP26: _Field(4, _branch, 26),
        _CALL26: _Field(4, _branch, 26),
        **{kind: _Field(4, _part(n), 16, 5) for kind, n in _PARTS.items()},
        **{kind: _Field(4, _in_page(scale), 12, 10) for kind, scale in _SCALES.items()},
    },
}
