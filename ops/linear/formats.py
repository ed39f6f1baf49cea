"""What a kernel must know of a quantised format: one table entry per type.

A weight is `w = d * q + low` with small integers q (codes). Formats with blocks of 32 weights have
one `d` and one `low` per block; formats with blocks of 256 have one `d` and `low` per block and
small integers per 16 weights beside them: `w = d * scale * q + low * minimum`.

An emitter turns a block at an address into vectors. Codes are <32 x i8>, in the order of the
weights: unsigned where the format allows (`signed=False`, at most `top`), because the integer dot
products of x86 multiply unsigned by signed bytes; the offset of such a format is its `centre` (8
for Q4_0), which meets the sum of the activations. Adding a type is one entry and its emitters.

Blocks of 32, byte by byte (h: f16; n: 16 bytes, low nibbles are weights 0-15, high 16-31):

    Q8_0  h d | 32 int8            IQ4_NL  h d | n (index of a table)
    Q4_0  h d | n                  MXFP4   e8m0 exponent | n (index of a table)
    Q4_1  h d | h m | n
    Q5_0  h d | 32 fifth bits | n
    Q5_1  h d | h m | 32 fifth bits | n
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..reference.quants import IQ4_VALUES, MXFP4_VALUES
from ..simd import VARIANT, call, const, emit_join, shuffle, vty

Value = Any  # an llvmlite value
Builder = Any
I8, I16, I32, F16, F32 = (
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.HalfType(),
    ir.FloatType(),
)


@dataclass(frozen=True)
class Format:
    """How to read one block; emitters take a builder and a byte pointer."""

    type_name: str
    block: int  # weights per block: 32 or 256
    n_bytes: int
    top: int  # largest |code|
    signed: bool
    # block / 32 vectors <32 x i8>, emitted one by one as they are asked for: few are alive at once
    codes: Callable[[Builder, Value], Iterable[Value]]
    # n blocks at once -> <n x float> d and low (None: see `centre`)
    floats: Callable[[Builder, Blocks], tuple[Value, Value | None]]
    # blocks of 256: <16 x i16> scales and minima (None: none), one per 16 weights
    scales: Callable[[Builder, Value], tuple[Value, Value | None]] | None = None
    grain: int = 32  # weights that share a scale
    # the same where they are bytes: <16 x i8>, eight scales and eight minima
    scale_bytes: Callable[[Builder, Value], Value] | None = None
    centre: int = 0  # what codes are too large by: low = -centre * d

    def d_and_low(self, b: Builder, blocks: Blocks) -> tuple[Value, Value | None]:
        """<n x float> d and low (None: always 0) of n blocks."""
        d, low = self.floats(b, blocks)
        return d, scaled(b, d, -self.centre) if self.centre else low


# ------------------------------------------------------------ small pieces --


def at(b: Builder, pointer: Value, offset: int) -> Value:
    """The byte pointer `offset` bytes further."""
    return b.gep(pointer, [ir.Constant(ir.IntType(64), offset)])


def read(b: Builder, pointer: Value, ty: Any, offset: int = 0) -> Value:
    """Load a value of any type from any byte."""
    value = b.load(b.bitcast(at(b, pointer, offset), ty.as_pointer()))
    value.align = 1
    return value


class Columns(ABC):
    """Where emitters can read instead of at a pointer: four columns of each 32, of many rows."""

    @abstractmethod
    def read_bytes(self, b: Builder, offset: int) -> Value:
        """These columns' bytes of 32."""

    @abstractmethod
    def read_nibbles(self, b: Builder, offset: int) -> Value:
        """These columns' nibbles of 16 bytes, a byte each."""

    @abstractmethod
    def read_bits(self, b: Builder, offset: int, value: int) -> Value:
        """`value` where these columns' bit of 4 bytes is set."""


def read_bytes(b: Builder, p: Value, offset: int, n: int = 32) -> Value:
    """n bytes of the block."""
    return p.read_bytes(b, offset) if isinstance(p, Columns) else read(b, p, vty(I8, n), offset)


def read_nibbles(b: Builder, p: Value, offset: int) -> Value:
    """The low nibbles of 16 bytes, then the high ones."""
    if isinstance(p, Columns):
        return p.read_nibbles(b, offset)
    return nibbles(b, read_bytes(b, p, offset, 16))


def _read_bits(b: Builder, p: Value, offset: int, value: int) -> Value:
    """`value` for each bit set of 32."""
    if isinstance(p, Columns):
        return p.read_bits(b, offset, value)
    bits, ty = b.bitcast(read(b, p, I32, offset), vty(ir.IntType(1), 32)), vty(I8, 32)
    return b.select(bits, const(ty, value), const(ty, 0))


@dataclass(frozen=True)
class SideBySide:
    """The same block of n rows, element by element: what stands at byte k of one is at n * k.

    Elements are the numbers before the codes, then words of 4 bytes.
    """

    pointer: Value
    n: int

    def __len__(self) -> int:
        return self.n

    def read(self, b: Builder, ty: Any, offset: int) -> Value:
        """One element of each row."""
        return read(b, self.pointer, vty(ty, self.n), self.n * offset)


# n blocks: pointers to each, or all of them interleaved.
Blocks = Sequence[Value] | SideBySide


def gather(b: Builder, pointers: Blocks, ty: Any, offset: int) -> Value:
    """One element from the same place of each block -> <n x ty>.

    A few are put together in integer registers. Inserted one by one into an undefined vector
    (`vpinsrw`), they would wait for what its register held before, often a sum of the kernel.
    """
    if isinstance(pointers, SideBySide):
        return pointers.read(b, ty, offset)
    n, width = len(pointers), 16 if ty == F16 else ty.width
    if n * width >= 128 and width >= 16:  # many: into lanes of registers that begin as zeros
        at_once = 128 // width
        lanes = [ir.Constant(vty(ir.IntType(width), at_once), None)] * (n // at_once)
        for i, pointer in enumerate(pointers):
            one, lane = read(b, pointer, ir.IntType(width), offset), ir.Constant(I32, i % at_once)
            lanes[i // at_once] = b.insert_element(lanes[i // at_once], one, lane)
        while len(lanes) > 1:
            lanes = [emit_join(b, *pair) for pair in zip(lanes[::2], lanes[1::2])]
        return b.bitcast(lanes[0], vty(ty, n))
    if n * width > 64:
        parts = (gather(b, half, ty, offset) for half in (pointers[: n // 2], pointers[n // 2 :]))
        return emit_join(b, *parts)
    word = ir.IntType(max(32, n * width))
    out = ir.Constant(word, 0)
    for i, pointer in enumerate(pointers):
        one = b.zext(read(b, pointer, ir.IntType(width), offset), word)
        out = b.or_(out, b.shl(one, ir.Constant(word, i * width)))
    packed = b.bitcast(pinned(b, out) if VARIANT == "avx2" else out, vty(ty, word.width // width))
    return packed if packed.type.count == n else shuffle(b, packed, range(n))


def pinned(b: Builder, x: Value) -> Value:
    """x itself, as a value that LLVM cannot look into: an empty instruction, `asm("" : "+x"(x))`.

    AVX2: 32 bytes, or an integer. LLVM would turn sums into trees, keep all their operands in
    registers for that, and spill most of them (half the speed): pinned sums are computed in the
    order written. It would also undo other things that are written here for speed.
    """
    constraint = "=x,0" if isinstance(x.type, ir.VectorType) else "=r,0"
    pin = ir.InlineAsm(ir.FunctionType(x.type, [x.type]), "", constraint, side_effect=True)
    return b.call(pin, [x])


def halves(b: Builder, pointers: Blocks, offset: int) -> Value:
    return b.fpext(gather(b, pointers, F16, offset), vty(F32, len(pointers)))


def scaled(b: Builder, d: Value, factor: float) -> Value:
    return b.fmul(d, const(d.type, factor))


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


def nibbles(b: Builder, x: Value) -> Value:
    """16 bytes -> 32 codes: the low nibbles, then the high ones, by one shift of words."""
    words = b.bitcast(shuffle(b, x, [*range(16), *range(16)]), vty(I32, 8))
    words = b.lshr(words, ir.Constant(words.type, [0] * 4 + [4] * 4))
    return b.and_(b.bitcast(words, vty(I8, 32)), const(vty(I8, 32), 15))


def look_up(b: Builder, index: Value, table: Sequence[int]) -> Value:
    """table[index] per byte, for a table of 16 and <32 x i8> (or 64) indices below 16."""
    ty = index.type
    if ty.count > 32:
        parts = [look_up(b, shuffle(b, index, range(k, k + 32)), table) for k in (0, 32)]
        return emit_join(b, *parts)
    if VARIANT in ("avx2", "avx512"):
        entries = ir.Constant(ty, [*table, *table])
        return call(b, "llvm.x86.avx2.pshuf.b", ty, entries, index)
    if VARIANT == "neon":
        half, entries = vty(I8, 16), ir.Constant(vty(I8, 16), list(table))
        parts = [
            call(
                b,
                "llvm.aarch64.neon.tbl1.v16i8",
                half,
                entries,
                shuffle(b, index, range(k, k + 16)),
            )
            for k in (0, 16)
        ]
        return shuffle(b, parts[0], range(32), parts[1])
    # Halve the table bit by bit, the highest first.
    values = [const(ty, entry) for entry in table]
    for bit in (8, 4, 2, 1):
        high = b.icmp_unsigned("!=", b.and_(index, const(ty, bit)), const(ty, 0))
        values = [b.select(high, values[i + bit], values[i]) for i in range(bit)]
    return values[0]


# ---------------------------------------------------- blocks of 32 weights --


def _codes_q8_0(b: Builder, p: Value) -> list[Value]:
    return [read_bytes(b, p, 2, 32)]


def _codes_4(offset: int, table: Sequence[int] | None = None):
    def codes(b: Builder, p: Value) -> list[Value]:
        q = read_nibbles(b, p, offset)
        return [q if table is None else look_up(b, q, table)]

    return codes


def _codes_5(offset: int):
    def codes(b: Builder, p: Value) -> list[Value]:
        q = read_nibbles(b, p, offset + 4)
        return [b.or_(q, _read_bits(b, p, offset, 16))]

    return codes


def one_half(offset: int = 0):
    """`d` alone (minima of formats with a centre are the scales themselves)."""

    def floats(b: Builder, ps: Blocks) -> tuple[Value, Value | None]:
        return halves(b, ps, offset), None

    return floats


def two_halves(offset: int = 0, sign: int = 1):
    """`d`, then `low` or (sign -1) what is to be subtracted."""

    def floats(b: Builder, ps: Blocks) -> tuple[Value, Value | None]:
        n, both = len(ps), gather(b, ps, I32, offset)
        both = b.bitcast(both, vty(F16, 2 * n))
        apart = shuffle(b, both, [*range(0, 2 * n, 2), *range(1, 2 * n, 2)])
        wide = b.fpext(apart, vty(F32, 2 * n))
        d, low = (shuffle(b, wide, range(k, k + n)) for k in (0, n))
        return d, low if sign > 0 else b.fneg(low)

    return floats


def _e8m0(b: Builder, ps: Blocks) -> tuple[Value, Value | None]:
    """Half of 2**(e - 127), since the table holds doubled values."""
    ty = vty(I32, len(ps))
    e = b.zext(gather(b, ps, I8, 0), ty)
    normal = b.shl(b.sub(e, const(ty, 1)), const(ty, 23))
    small = b.shl(const(ty, 0x00200000), e)
    bits = b.select(b.icmp_unsigned("<", e, const(ty, 2)), small, normal)
    return b.bitcast(bits, vty(F32, len(ps))), None


_MXFP4_FROM_0 = tuple(v + 12 for v in MXFP4_VALUES)

BLOCKS_OF_32 = (
    Format("Q8_0", 32, 34, 127, True, _codes_q8_0, one_half()),
    Format("Q4_0", 32, 18, 15, False, _codes_4(2), one_half(), centre=8),
    Format("Q4_1", 32, 20, 15, False, _codes_4(4), two_halves()),
    Format("Q5_0", 32, 22, 31, False, _codes_5(2), one_half(), centre=16),
    Format("Q5_1", 32, 24, 31, False, _codes_5(4), two_halves()),
    Format("IQ4_NL", 32, 18, 127, True, _codes_4(2, IQ4_VALUES), one_half()),
    Format("MXFP4", 32, 17, 24, False, _codes_4(1, _MXFP4_FROM_0), _e8m0, centre=12),
)
