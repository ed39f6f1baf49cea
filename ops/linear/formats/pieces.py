"""The parts of emitters: they read one block or several, and take bits apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ....jit.simd import (
    BYTES,
    F16,
    F32,
    I8,
    I32,
    VARIANT,
    call,
    const,
    emit_join,
    read,
    shuffle,
    vty,
)

Value = Any  # an llvmlite value
Builder = Any
X86 = VARIANT in ("avx2", "avx512")
_REGISTER_BITS = 512 if VARIANT == "avx512" else 256


class Columns(ABC):
    """A source for emitters, like a pointer: a block of each of 16 rows, one row per lane.

    A vector has the codes of four columns, 4 j .. 4 j + 3 of each 32.
    """

    def __init__(self, j: int) -> None:
        self.j = j

    @abstractmethod
    def word(self, b: Builder, offset: int, k: int) -> Value:
        """Bytes 4 k .. 4 k + 3 of the 16 bytes at `offset` of each block: <16 x i32>."""

    @abstractmethod
    def lone_word(self, b: Builder, offset: int) -> Value:
        """The 4 bytes at `offset` of each block: <16 x i32>."""

    def read_bytes(self, b: Builder, offset: int) -> Value:
        """These columns of the 32 bytes at `offset`."""
        return b.bitcast(self.word(b, offset + 16 * (self.j // 4), self.j % 4), BYTES)

    def read_nibbles(self, b: Builder, offset: int) -> Value:
        """These columns of the nibbles of the 16 bytes at `offset`, a byte each."""
        words = b.bitcast(self.word(b, offset, self.j % 4), BYTES)
        return field(b, words, 4 * (self.j // 4), 15)

    def read_bits(self, b: Builder, offset: int, value: int) -> Value:
        """`value` for each column whose bit in the 4 bytes at `offset` is set, otherwise 0."""
        four = self.lone_word(b, offset)
        four = b.and_(b.lshr(four, const(four.type, 4 * self.j)), const(four.type, 15))
        # Bit k to byte k: four copies, each 7 bits further than the last.
        spread = b.mul(four, const(four.type, 1 + (1 << 7) + (1 << 14) + (1 << 21)))
        ones = b.bitcast(b.and_(spread, const(four.type, 0x01010101)), BYTES)
        return b.mul(ones, const(BYTES, value))


def read_bytes(b: Builder, p: Value, offset: int, n: int = 32) -> Value:
    """n bytes of the block."""
    return p.read_bytes(b, offset) if isinstance(p, Columns) else read(b, p, vty(I8, n), offset)


def read_nibbles(b: Builder, p: Value, offset: int) -> Value:
    """The low nibbles of 16 bytes, then the high ones."""
    if isinstance(p, Columns):
        return p.read_nibbles(b, offset)
    both = shuffle(b, read_bytes(b, p, offset, 16), [*range(16), *range(16)])
    words = b.bitcast(both, vty(I32, 8))
    words = b.lshr(words, ir.Constant(words.type, [0] * 4 + [4] * 4))
    return b.and_(b.bitcast(words, both.type), const(both.type, 15))


def read_bits(b: Builder, p: Value, offset: int, value: int) -> Value:
    """`value` for each bit set of 32."""
    if isinstance(p, Columns):
        return p.read_bits(b, offset, value)
    bits, ty = b.bitcast(read(b, p, I32, offset), vty(ir.IntType(1), 32)), vty(I8, 32)
    return b.select(bits, const(ty, value), const(ty, 0))


@dataclass(frozen=True)
class SideBySide:
    """The same block of n rows, interleaved: an element at byte k of a block starts at n * k.

    Elements are the numbers before the codes, then words of 4 bytes.
    """

    pointer: Value
    n: int

    def __len__(self) -> int:
        return self.n

    def read(self, b: Builder, ty: Any, offset: int) -> Value:
        """One element of each row."""
        return read(b, self.pointer, vty(ty, self.n), self.n * offset)


# n blocks: a pointer to each, or all of them interleaved.
Blocks = Sequence[Value] | SideBySide


def join_all(b: Builder, vectors: list[Value]) -> Value:
    """The lanes of 1, 2, 4, … vectors in one."""
    while len(vectors) > 1:
        vectors = [emit_join(b, *pair) for pair in zip(vectors[::2], vectors[1::2])]
    return vectors[0]


def gather(b: Builder, pointers: Blocks, ty: Any, offset: int) -> Value:
    """One element from the same place of each block -> <n x ty>.

    A few elements are joined in integer registers. Inserting them into an undefined vector
    (`vpinsrw`) would wait for the old value of its register, often a sum of the kernel.
    """
    if isinstance(pointers, SideBySide):
        return pointers.read(b, ty, offset)
    n, width = len(pointers), 16 if ty == F16 else ty.width
    if n * width >= 128 and width >= 16:  # into lanes of registers that begin as zeros
        at_once = 128 // width
        lanes = [ir.Constant(vty(ir.IntType(width), at_once), None)] * (n // at_once)
        for i, pointer in enumerate(pointers):
            value, lane = read(b, pointer, ir.IntType(width), offset), ir.Constant(I32, i % at_once)
            lanes[i // at_once] = b.insert_element(lanes[i // at_once], value, lane)
        return b.bitcast(join_all(b, lanes), vty(ty, n))
    if n * width > 64:
        parts = (gather(b, half, ty, offset) for half in (pointers[: n // 2], pointers[n // 2 :]))
        return emit_join(b, *parts)
    word = ir.IntType(max(32, n * width))
    out = ir.Constant(word, 0)
    for i, pointer in enumerate(pointers):
        value = b.zext(read(b, pointer, ir.IntType(width), offset), word)
        out = b.or_(out, b.shl(value, ir.Constant(word, i * width)))
    packed = b.bitcast(pinned(b, out) if X86 else out, vty(ty, word.width // width))
    return packed if packed.type.count == n else shuffle(b, packed, range(n))


def pinned(b: Builder, x: Value) -> Value:
    """x as a value that LLVM cannot analyse: the result of `asm("" : "+x"(x))`.

    For x86, and integers or a vector of them. LLVM would turn sums into trees, keep all operands in
    registers for that, and spill most of them (half the speed). Pinned sums stay in their order.
    Pins in other places keep LLVM from rewriting fast code.
    """
    vector = isinstance(x.type, ir.VectorType)
    if vector and x.type.count * x.type.element.width > _REGISTER_BITS:
        half = x.type.count // 2
        parts = (shuffle(b, x, range(k, k + half)) for k in (0, half))
        return emit_join(b, *(pinned(b, part) for part in parts))
    register = "v" if VARIANT == "avx512" else "x"
    constraint = f"={register},0" if vector else "=r,0"
    pin = ir.InlineAsm(ir.FunctionType(x.type, [x.type]), "", constraint, side_effect=True)
    return b.call(pin, [x])


def field(b: Builder, x: Value, shift: int, mask: int) -> Value:
    """`(x >> shift) & mask` per byte; a negative shift is to the left.

    Shifts whole words (x86 has no byte shifts): `mask` must not reach the neighbour's bits.
    """
    words = b.bitcast(x, vty(I32, x.type.count // 4))
    if shift > 0:
        words = b.lshr(words, const(words.type, shift))
    elif shift < 0:
        words = b.shl(words, const(words.type, -shift))
    return b.and_(b.bitcast(words, x.type), const(x.type, mask))


def two_fields(b: Builder, x: Value, shifts: tuple[int, int], mask: int) -> Value:
    """32 bytes -> 64: `field` by the first shift, then by the second; one rotation of words."""
    both = shuffle(b, x, [*range(32), *range(32)])
    words = b.bitcast(both, vty(I32, 16))
    if any(shifts):
        by = ir.Constant(words.type, [shift % 32 for shift in shifts for _ in range(8)])
        words = call(b, "llvm.fshr.v16i32", words.type, words, words, by)
    return b.and_(b.bitcast(words, both.type), const(both.type, mask))


def look_up(b: Builder, index: Value, table: Sequence[int]) -> Value:
    """table[index] per byte, for a table of 16 and <32 x i8> (or 64) indices below 16."""
    ty = index.type
    if ty.count > 32:
        parts = [look_up(b, shuffle(b, index, range(k, k + 32)), table) for k in (0, 32)]
        return emit_join(b, *parts)
    if X86:
        entries = ir.Constant(ty, [*table, *table])
        return call(b, "llvm.x86.avx2.pshuf.b", ty, entries, index)
    if VARIANT == "neon":
        half, entries = vty(I8, 16), ir.Constant(vty(I8, 16), list(table))
        indices = (shuffle(b, index, range(k, k + 16)) for k in (0, 16))
        name = "llvm.aarch64.neon.tbl1.v16i8"
        return emit_join(b, *(call(b, name, half, entries, part) for part in indices))
    # Halve the table bit by bit, the highest first.
    values = [const(ty, entry) for entry in table]
    for bit in (8, 4, 2, 1):
        high = b.icmp_unsigned("!=", b.and_(index, const(ty, bit)), const(ty, 0))
        values = [b.select(high, values[i + bit], values[i]) for i in range(bit)]
    return values[0]


def one_half(offset: int = 0):
    """`d` alone."""

    def floats(b: Builder, ps: Blocks) -> tuple[Value, Value | None]:
        return b.fpext(gather(b, ps, F16, offset), vty(F32, len(ps))), None

    return floats


def two_halves(offset: int = 0, sign: int = 1):
    """`d`, then `low`; with sign -1 the file holds -low."""

    def floats(b: Builder, ps: Blocks) -> tuple[Value, Value | None]:
        n, both = len(ps), gather(b, ps, I32, offset)
        both = b.bitcast(both, vty(F16, 2 * n))
        apart = shuffle(b, both, [*range(0, 2 * n, 2), *range(1, 2 * n, 2)])
        wide = b.fpext(apart, vty(F32, 2 * n))
        d, low = (shuffle(b, wide, range(k, k + n)) for k in (0, n))
        return d, low if sign > 0 else b.fneg(low)

    return floats
