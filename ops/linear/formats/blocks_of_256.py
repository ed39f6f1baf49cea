"""The formats with blocks of 256 weights: two levels of scales (see `format`).

Byte by byte (h: f16; chunks of 32 bytes hold field j of 32 weights at bits j*width):

    Q2_K    16 x (scale nibble, minimum nibble) | 64 two-bit | h d | h dmin
    Q3_K    32 x 8 third bits | 64 two-bit | 12 bytes of 6-bit scales | h d
    Q4_K    h d | h dmin | 12 bytes of 6-bit scales and minima | 128 four-bit
    Q5_K    h d | h dmin | 12 as Q4_K | 32 x 8 fifth bits | 128 four-bit
    Q6_K    128 low four bits | 64 high two bits | 16 int8 scales | h d
    IQ4_XS  h d | 8 x 2 high bits of scales | 4 bytes of low nibbles | 128 four-bit
"""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from ....jit.simd import I8, I16, I32, I64, const, read, shuffle, splat, vty
from ...reference.quants import IQ4_VALUES
from .format import Format
from .pieces import (
    Builder,
    Value,
    field,
    look_up,
    one_half,
    read_bytes,
    read_nibbles,
    two_fields,
    two_halves,
)

S16 = vty(I16, 16)
TWICE = [i // 2 for i in range(16)]  # eight scales of 32 weights as sixteen of 16


def _codes_q2_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 16 + 32 * h, 32) for h in (0, 1))
    return (field(b, x, 2 * j, 3) for x in chunks for j in range(4))


def _codes_q3_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 32 + 32 * h, 32) for h in (0, 1))
    third = read_bytes(b, p, 0, 32)
    low = (field(b, x, 2 * j, 3) for x in chunks for j in range(4))
    return (b.or_(q, field(b, third, s - 2, 4)) for s, q in enumerate(low))


def _codes_q4_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 16 + 32 * c, 32) for c in range(4))
    return (field(b, x, shift, 15) for x in chunks for shift in (0, 4))


def _codes_q5_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 48 + 32 * c, 32) for c in range(4))
    fifth = read_bytes(b, p, 16, 32)
    low = (field(b, x, shift, 15) for x in chunks for shift in (0, 4))
    return (b.or_(q, field(b, fifth, s - 4, 16)) for s, q in enumerate(low))


def _codes_q6_k(b: Builder, p: Value) -> Iterator[Value]:
    for h in (0, 1):
        low = [read_bytes(b, p, 64 * h + 32 * c, 32) for c in (0, 1)]
        high = read_bytes(b, p, 128 + 32 * h, 32)
        for j in range(4):
            q = field(b, low[j % 2], 4 * (j // 2), 15)
            yield b.or_(q, field(b, high, 2 * j - 4, 48))


def _codes_iq4_xs(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_nibbles(b, p, 8 + 16 * s) for s in range(8))
    return (look_up(b, x, IQ4_VALUES) for x in chunks)


# 64 codes at a time: two vectors of 32 that share their bytes, side by side.


def _pairs_q2_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 16 + 32 * h, 32) for h in (0, 1))
    return (two_fields(b, x, (j, j + 2), 3) for x in chunks for j in (0, 4))


def _pairs_q3_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 32 + 32 * h, 32) for h in (0, 1))
    third = read_bytes(b, p, 0, 32)
    low = (two_fields(b, x, (j, j + 2), 3) for x in chunks for j in (0, 4))
    return (b.or_(q, two_fields(b, third, (2 * i - 2, 2 * i - 1), 4)) for i, q in enumerate(low))


def _pairs_q4_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 16 + 32 * c, 32) for c in range(4))
    return (two_fields(b, x, (0, 4), 15) for x in chunks)


def _pairs_q5_k(b: Builder, p: Value) -> Iterator[Value]:
    chunks = (read_bytes(b, p, 48 + 32 * c, 32) for c in range(4))
    fifth = read_bytes(b, p, 16, 32)
    low = (two_fields(b, x, (0, 4), 15) for x in chunks)
    return (b.or_(q, two_fields(b, fifth, (2 * i - 4, 2 * i - 3), 16)) for i, q in enumerate(low))


def _pairs_q6_k(b: Builder, p: Value) -> Iterator[Value]:
    for h in (0, 1):
        low, high = read_bytes(b, p, 64 * h, 64), read_bytes(b, p, 128 + 32 * h, 32)
        for j in (0, 4):
            q = field(b, low, j, 15)
            yield b.or_(q, two_fields(b, high, (j - 4, j - 2), 48))


def _scales_q2_k(b: Builder, p: Value) -> tuple[Value, Value | None]:
    x = read_bytes(b, p, 0, 16)
    return b.zext(field(b, x, 0, 15), S16), b.zext(field(b, x, 4, 15), S16)


def _scales_q3_k(b: Builder, p: Value) -> tuple[Value, Value | None]:
    x = read_bytes(b, p, 96, 8)
    low = shuffle(b, field(b, x, 0, 15), range(16), field(b, x, 4, 15))
    # Two bits each: byte i of the word holds those of scales i, i + 4, i + 8, i + 12.
    high = b.lshr(splat(b, read(b, p, I32, 104), 4), ir.Constant(vty(I32, 4), [0, 2, 4, 6]))
    high = b.and_(b.bitcast(high, vty(I8, 16)), const(vty(I8, 16), 3))
    q = b.or_(b.zext(low, S16), b.shl(b.zext(high, S16), const(S16, 4)))
    scale = b.sub(q, const(S16, 32))
    return scale, scale


def _scale_bytes_q4_k(b: Builder, p: Value) -> Value:
    """Words: scales 0-3 (6 bits), minima 0-3, low nibbles of scales and of minima 4-7.

    The two high bits of scales and minima 4-7 are the high bits of the first two words. In integer
    registers, which have nothing else to do: `begin` is scales and minima 0-3, `end` 4-7.
    """

    def fields(x: Value, mask: int) -> Value:
        return b.and_(x, ir.Constant(I64, mask * 0x0101010101010101))

    def shift(x: Value, right: int) -> Value:
        return b.lshr(x, ir.Constant(I64, right))

    six, twice = read(b, p, I64, 4), b.zext(read(b, p, I32, 12), I64)
    # Twice, the second time four bits lower, in the upper half.
    twice = b.or_(twice, b.shl(twice, ir.Constant(I64, 28)))
    begin, end = fields(six, 0x3F), b.or_(fields(shift(six, 2), 0x30), fields(twice, 0x0F))
    words = [b.bitcast(splat(b, x, 2), vty(I32, 4)) for x in (begin, end)]
    return b.bitcast(shuffle(b, words[0], [0, 4, 1, 5], words[1]), vty(I8, 16))


def _scales_q4_k(b: Builder, p: Value) -> tuple[Value, Value | None]:
    both = _scale_bytes_q4_k(b, p)
    scale = b.zext(shuffle(b, both, TWICE), S16)
    return scale, b.zext(shuffle(b, both, [8 + i for i in TWICE]), S16)


def _scales_q6_k(b: Builder, p: Value) -> tuple[Value, Value | None]:
    scale = b.sext(read_bytes(b, p, 192, 16), S16)
    return scale, scale


def _scales_iq4_xs(b: Builder, p: Value) -> tuple[Value, Value | None]:
    ty = vty(I32, 8)
    low = b.lshr(splat(b, read(b, p, I32, 4), 8), ir.Constant(ty, [4 * i for i in range(8)]))
    high = splat(b, b.zext(read(b, p, I16, 2), I32), 8)
    high = b.lshr(high, ir.Constant(ty, [2 * i for i in range(8)]))
    q = b.or_(
        b.and_(low, const(ty, 15)),
        b.shl(b.and_(high, const(ty, 3)), const(ty, 4)),
    )
    scale = b.trunc(b.sub(q, const(ty, 32)), vty(I16, 8))
    return shuffle(b, scale, TWICE), None


# fmt: off
BLOCKS_OF_256 = (
    Format("Q2_K", 3, False, _codes_q2_k, two_halves(80, -1), _scales_q2_k, 16,
           pairs=_pairs_q2_k),
    Format("Q3_K", 7, False, _codes_q3_k, one_half(108), _scales_q3_k, 16,
           centre=4, pairs=_pairs_q3_k),
    Format("Q4_K", 15, False, _codes_q4_k, two_halves(0, -1), _scales_q4_k,
           scale_bytes=_scale_bytes_q4_k, pairs=_pairs_q4_k),
    Format("Q5_K", 31, False, _codes_q5_k, two_halves(0, -1), _scales_q4_k,
           scale_bytes=_scale_bytes_q4_k, pairs=_pairs_q5_k),
    Format("Q6_K", 63, False, _codes_q6_k, one_half(208), _scales_q6_k, 16,
           centre=32, pairs=_pairs_q6_k),
    Format("IQ4_XS", 127, True, _codes_iq4_xs, one_half(), _scales_iq4_xs),
)
# fmt: on
