"""Integer dot products as IR: codes of weights by int8 activations.

Codes are unsigned, at most `top` (127, or 255 on avx512), or signed. The variants:

    avx512   vpdpbusd: 4 products into 32 bits, for any u8 (128 is added to signed codes); for rows
             with integer scales vpmaddubsw, then vpdpwssd with the scales (`has_pairs`)
    avx2     vpmaddubsw: 2 products into 16 bits, then vpmaddwd with ones or with the weights'
             integer scales; signed codes as |w| by sign(w) * x
    others   the dot products of `simd`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from llvmlite import ir

from ...jit.simd import (
    I16,
    I32,
    VARIANT,
    call,
    const,
    emit_dot_ss,
    emit_dot_u7s,
    emit_dot_us,
    pair_sums_i16,
    pair_sums_u7s,
    shuffle,
    vty,
)
from .formats import Format
from .formats.pieces import Builder, Value, join_all, pinned

AVX2 = VARIANT == "avx2"


def in_halves(b: Builder, emit: Callable[..., Value], n: int, *operands: Value) -> Value:
    """Apply `emit` to pieces of n lanes and join the results."""
    count = operands[0].type.count
    return join_all(
        b,
        [
            emit(b, *(shuffle(b, x, range(k, k + n)) if count > n else x for x in operands))
            for k in range(0, count, n)
        ],
    )


def madd(b: Builder, x: Value, y: Value) -> Value:
    """<n x i16> by <n x i16> -> <n/2 x i32>: sums of two products."""
    n = x.type.count
    if AVX2 or VARIANT == "avx512":
        return in_halves(b, pair_sums_i16, 16, x, y)
    wide = vty(I32, n)
    p = b.mul(b.sext(x, wide), b.sext(y, wide))
    return b.add(shuffle(b, p, range(0, n, 2)), shuffle(b, p, range(1, n, 2)))


def madd_onto(b: Builder, acc: Value, x: Value, y: Value) -> Value:
    """acc + <n x i16> by <n x i16>, sums of two products."""
    if VARIANT == "avx512" and x.type.count == 32:
        return call(b, "llvm.x86.avx512.vpdpwssd.512", acc.type, acc, x, y)
    return b.add(acc, madd(b, x, y))


def _with_sign_of(b: Builder, x: Value, codes: Value) -> Value:
    """x where the code is positive, -x where it is negative, 0 where it is 0."""
    return call(b, "llvm.x86.avx2.psign.b", x.type, x, codes)


def signed_pairs(b: Builder, codes: Value, x: Value, signed: bool) -> Value:
    """AVX2: <n x i8> by <n x i8> -> <n/2 x i16> sums of two products; signed: |code| by +-x."""
    if signed:
        x, ty = in_halves(b, _with_sign_of, 32, x, codes), codes.type
        codes = call(b, f"llvm.abs.v{ty.count}i8", ty, codes, ir.Constant(ir.IntType(1), 0))
    return in_halves(b, pair_sums_u7s, 32, codes, x)


def dot_onto(b: Builder, acc: Value, codes: Value, x: Value, signed: bool) -> Value:
    """acc + sums of four products, by the dot products of `simd` (not for AVX2)."""
    if VARIANT == "avx512":
        return emit_dot_us(b, acc, codes, x)
    return (emit_dot_ss if signed else emit_dot_u7s)(b, acc, codes, x)


def dot(b: Builder, codes: Value, x: Value, signed: bool) -> Value:
    """<64 x i8> by <64 x i8> -> <16 x i32>: sums of four products."""
    if AVX2:
        pairs = signed_pairs(b, codes, x, signed)
        return madd(b, pairs, const(pairs.type, 1))
    return dot_onto(b, const(vty(I32, codes.type.count // 4), 0), codes, x, signed)


def four_dots(b: Builder, codes: Sequence[Value], x: Sequence[Value]) -> Value:
    """AVX2: four times <32 x i8> by <32 x i8> -> <8 x i32>: lanes i and i + 4 add up to dot i.

    Transposing the sums while they have 16 bits saves three of four conversions, and the scales of
    four blocks then fit the lanes. See `fits_four_dots` for the formats whose sums fit.
    """
    sums, pairs = [pair_sums_u7s(b, q, v) for q, v in zip(codes, x)], vty(I16, 16)
    for lanes in ([0, 8, 1, 9, 4, 12, 5, 13], [0, 1, 8, 9, 4, 5, 12, 13]):
        high = [lane + 2 for lane in lanes]
        words = [b.bitcast(v, vty(I32, 8)) for v in sums]
        sums = [
            b.add(*(b.bitcast(shuffle(b, v, half, w), pairs) for half in (lanes, high)))
            for v, w in zip(words[::2], words[1::2])
        ]
    return madd(b, sums[0], const(pairs, 1))


def fits_four_dots(f: Format) -> bool:
    """Whether the variant uses `four_dots`, and sums of 8 products fit in 16 bits."""
    return AVX2 and not f.signed and 8 * f.top * 127 <= 32767


def has_pairs(f: Format) -> bool:
    """Whether a row's products are added in pairs, in 16 bits, and then multiplied by the scales.

    With AVX-512, for formats whose pairs fit in 16 bits.
    """
    return VARIANT == "avx512" and f.pairs is not None


def codes_64(b: Builder, f: Format, w: Value) -> Iterable[Value]:
    """The codes of a block of 256 as <64 x i8>."""
    return f.pairs(b, w) if f.pairs and has_pairs(f) else join_pairs(b, f.codes(b, w))


def _spread_bytes(b: Builder, equal: Value, first: Sequence[int]) -> Value:
    """<n x i8> of equal quarters or halves -> int16: byte first[i] to lane i, by one vpshufb."""
    n = equal.type.count
    lanes = [k for i, byte in enumerate(first) for k in (16 * (i // 8) + byte, n)]
    return b.bitcast(shuffle(b, equal, lanes, const(equal.type, 0)), vty(I16, len(first)))


def _factors_of_pairs(b: Builder, f: Format, w: Value) -> tuple[list[Value], Value | None]:
    """`factors` for AVX-512: <32 x i16> each; 128 bits of a register have the pairs of 16 codes."""
    if f.scale_bytes:
        equal = pinned(b, shuffle(b, f.scale_bytes(b, w), [*range(16)] * 4))
        each = [_spread_bytes(b, equal, [2 * j] * 16 + [2 * j + 1] * 16) for j in range(4)]
        half = shuffle(b, equal, range(32))
        return each, _spread_bytes(b, half, [8 + i // 2 for i in range(16)])
    emit: Any = f.scales
    scales, minima = emit(b, w)
    eights = [pinned(b, shuffle(b, scales, [*range(k, k + 8)] * 4)) for k in (0, 8)]
    orders = [[9 * quarter + j for quarter in range(4) for _ in range(8)] for j in (0, 4)]
    return [shuffle(b, eight, order) for eight in eights for order in orders], minima


def factors(b: Builder, f: Format, w: Value) -> tuple[list[Value], Value | None]:
    """Integer scales of a block of 256 for `add_scaled`, a vector per 64 codes; minima.

    x86 has a fast shuffle within 128 bits only, so each 128 bits of a register first get all the
    scales. They are `pinned`: LLVM would see that they are equal, and take two shuffles.
    """
    emit: Any = f.scales
    if has_pairs(f):
        return _factors_of_pairs(b, f, w)
    if not AVX2:
        scales, minima = emit(b, w)
        lanes = [[first + i // 4 for i in range(16)] for first in (0, 4, 8, 12)]
        return [b.sext(shuffle(b, scales, order), vty(I32, 16)) for order in lanes], minima
    if f.scale_bytes:
        both = pinned(b, shuffle(b, f.scale_bytes(b, w), [*range(16)] * 2))
        each = [_spread_bytes(b, both, [j] * 16) for j in range(8)]
        minima = _spread_bytes(b, both, [8 + i // 2 for i in range(16)])
    else:
        scales, minima = emit(b, w)
        if f.grain == 32:  # each scale is repeated
            lanes = [[*range(0, 16, 2)] * 2]
            orders = [[j] * 8 + [j + 8] * 8 for j in range(8)]
        else:
            lanes = [[*range(k, k + 8)] * 2 for k in (0, 8)]
            orders = [[j] * 8 + [j + 9] * 8 for j in (0, 2, 4, 6)]
        halves = [pinned(b, shuffle(b, scales, both)) for both in lanes]
        each = [shuffle(b, half, order) for half in halves for order in orders]
    return [shuffle(b, x, range(32), y) for x, y in zip(each[::2], each[1::2])], minima


def add_scaled(
    b: Builder, acc: Value | None, f: Format, codes: Value, x: Value, factor: Value
) -> Value:
    """acc (None: 0) + <64 x i8> by <64 x i8>, each 16 by their own integer scale -> <16 x i32>.

    factor: one of `factors`.
    """
    if has_pairs(f):
        ty = vty(I16, 32)
        pairs = call(b, "llvm.x86.avx512.pmaddubs.w.512", ty, codes, x)
        return madd_onto(b, const(vty(I32, 16), 0) if acc is None else acc, pairs, factor)
    if AVX2:
        part = madd(b, signed_pairs(b, codes, x, f.signed), factor)
    else:
        part = b.mul(dot(b, codes, x, f.signed), factor)
    return part if acc is None else _add_in_order(b, acc, part)


def _add_in_order(b: Builder, x: Value, y: Value) -> Value:
    """x + y, which LLVM may not reorder with other sums (see `pinned`)."""
    total = b.add(x, y)
    return pinned(b, total) if AVX2 else total


def join(b: Builder, low: Value, high: Value | None) -> Value:
    """<32 x i8> twice (or once and zeros) -> <64 x i8>."""
    return shuffle(b, low, range(64), const(low.type, 0) if high is None else high)


def join_pairs(b: Builder, codes: Iterable[Value]) -> Iterator[Value]:
    """Vectors <32 x i8> two by two -> <64 x i8>; an odd last one is padded with zeros."""
    rest = iter(codes)
    for low in rest:
        yield join(b, low, next(rest, None))
