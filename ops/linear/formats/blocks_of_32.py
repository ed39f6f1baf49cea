"""The formats with blocks of 32 weights.

Byte by byte (h: f16; n: 16 bytes, low nibbles are weights 0-15, high 16-31):

    Q8_0  h d | 32 int8            IQ4_NL  h d | n (index of a table)
    Q4_0  h d | n                  MXFP4   e8m0 exponent | n (index of a table)
    Q4_1  h d | h m | n
    Q5_0  h d | 32 fifth bits | n
    Q5_1  h d | h m | 32 fifth bits | n
"""

from collections.abc import Sequence

from ....jit.simd import F32, I8, I32, const, vty
from ...reference.quants import IQ4_VALUES, MXFP4_VALUES
from .format import Format
from .pieces import (
    Blocks,
    Builder,
    Value,
    gather,
    look_up,
    one_half,
    read_bits,
    read_bytes,
    read_nibbles,
    two_halves,
)


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
        return [b.or_(q, read_bits(b, p, offset, 16))]

    return codes


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
    Format("Q8_0", 127, True, _codes_q8_0, one_half()),
    Format("Q4_0", 15, False, _codes_4(2), one_half(), centre=8),
    Format("Q4_1", 15, False, _codes_4(4), two_halves()),
    Format("Q5_0", 31, False, _codes_5(2), one_half(), centre=16),
    Format("Q5_1", 31, False, _codes_5(4), two_halves()),
    Format("IQ4_NL", 127, True, _codes_4(2, IQ4_VALUES), one_half()),
    Format("MXFP4", 24, False, _codes_4(1, _MXFP4_FROM_0), _e8m0, centre=12),
)
