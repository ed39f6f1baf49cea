"""Dot products of groups of four 8-bit numbers, the one operation that is written per variant.

    acc int32[n], a and b int8[4 n]:  acc[i] + sum over j < 4 of a[4 i + j] * b[4 i + j]

    dot_us   a unsigned, b signed: exact for every pair
    dot_u7s  a <= 127 (4-bit and 6-bit codes): one or two instructions on nearly every CPU
    dot_ss   both signed, |b| <= 127: exact for every a, -128 too

n is 16, 8 or 4. A vector longer than the CPU's registers is computed in parts.
"""

from collections.abc import Callable

from llvmlite import ir

from ..variant import FEATURES, VARIANT
from .types import I8, I16, I32, Vec, call, const, emit_join, emits_by, shuffle, vty

__all__ = [
    "BYTES", "dot_ss", "dot_u7s", "dot_us", "emit_dot_ss", "emit_dot_u7s", "emit_dot_us",
    "pair_sums_i16", "pair_sums_u7s",
]  # fmt: skip

Emit = Callable[..., ir.Value]


def in_parts(n_bytes: int) -> Callable[[Emit], Emit]:
    """Decorator: an emitter for vectors of at most n_bytes takes longer ones too, in parts."""

    def wrap(emit: Emit) -> Emit:
        def parts(b, acc, u, s):
            n = u.type.count
            if n <= n_bytes:
                return emit(b, acc, u, s)
            low, high = (
                parts(
                    b,
                    shuffle(b, acc, range(i * n // 8, (i + 1) * n // 8)),
                    shuffle(b, u, range(i * n // 2, (i + 1) * n // 2)),
                    shuffle(b, s, range(i * n // 2, (i + 1) * n // 2)),
                )
                for i in (0, 1)
            )
            return emit_join(b, low, high)

        return parts

    return wrap


def _generic_us(b, acc, u, s):
    u, s = b.bitcast(u, acc.type), b.bitcast(s, acc.type)
    for j in range(4):  # byte j of each 32-bit lane, zero- and sign-extended
        x = b.and_(b.lshr(u, const(acc.type, 8 * j)), const(acc.type, 255))
        y = b.ashr(b.shl(s, const(acc.type, 24 - 8 * j)), const(acc.type, 24))
        acc = b.add(acc, b.mul(x, y))
    return acc


def _generic_ss(b, acc, a, s):
    a, s = b.bitcast(a, acc.type), b.bitcast(s, acc.type)
    for j in range(4):
        x, y = (b.ashr(b.shl(v, const(acc.type, 24 - 8 * j)), const(acc.type, 24)) for v in (a, s))
        acc = b.add(acc, b.mul(x, y))
    return acc


def _vnni_us(b, acc, u, s):
    return call(b, f"llvm.x86.avx512.vpdpbusd.{8 * u.type.count}", acc.type, acc, u, s)


def _vnni_ss(b, acc, a, s):
    """|a| as the unsigned operand, and s negated where a < 0."""
    negative = b.icmp_signed("<", a, const(a.type, 0))
    magnitude = b.select(negative, b.neg(a), a)
    return _vnni_us(b, acc, magnitude, b.select(negative, b.neg(s), s))


def _x86_name(name: str, n_bytes: int) -> str:
    """`pmadd.wd` of 32 bytes is llvm.x86.avx2.pmadd.wd; 16 bytes have older names."""
    if n_bytes == 32:
        return f"llvm.x86.avx2.{name}"
    return "llvm.x86.sse2.pmadd.wd" if name == "pmadd.wd" else f"llvm.x86.ssse3.{name}.128"


def pair_sums_u7s(b: ir.IRBuilder, u: ir.Value, s: ir.Value) -> ir.Value:
    """vpmaddubsw: int16 sums of two products u8 * s8; u <= 128 keeps it from saturating."""
    return call(b, _x86_name("pmadd.ub.sw", u.type.count), vty(I16, u.type.count // 2), u, s)


def pair_sums_i16(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """vpmaddwd: int32 sums of two products int16 * int16."""
    n = x.type.count
    return call(b, _x86_name("pmadd.wd", 2 * n), vty(I32, n // 2), x, y)


def _avx2_u7s(b, acc, u, s):
    pairs = pair_sums_u7s(b, u, s)
    return b.add(acc, pair_sums_i16(b, pairs, const(pairs.type, 1)))


def _avx2_us(b, acc, u, s):
    """The low seven bits and the eighth separately: a sum of two products then fits in 16 bits."""
    low, high = (b.and_(u, const(u.type, mask)) for mask in (127, -128))
    return _avx2_u7s(b, _avx2_u7s(b, acc, low, s), high, s)


def _avx2_ss(b, acc, a, s, dot=_avx2_u7s):
    """|a| as the unsigned operand (128 at most), s times the sign of a."""
    kind = "avx2" if a.type.count == 32 else "ssse3"
    end = "" if kind == "avx2" else ".128"
    signed = call(b, f"llvm.x86.{kind}.psign.b{end}", s.type, s, a)
    name = f"llvm.abs.v{a.type.count}i8"
    return dot(b, acc, call(b, name, a.type, a, ir.Constant(ir.IntType(1), 0)), signed)


def _avxvnni_ss(b, acc, a, s):
    """_avx2_ss with the single instruction of AVX-VNNI, which is exact for |a| = 128 as well."""
    return _avx2_ss(b, acc, a, s, _vnni_us)


def _neon(name: str) -> Emit:
    return lambda b, acc, x, y: call(
        b, f"llvm.aarch64.neon.{name}.v4i32.v16i8", acc.type, acc, x, y
    )


def _neon_us(b, acc, u, s):
    """`usdot` where the CPU has it (i8mm); else sdot of u - 128, and 128 * sum(s) added to it."""
    if "i8mm" in FEATURES:
        return _neon("usdot")(b, acc, u, s)
    flip = const(u.type, -128)
    biased = _neon("sdot")(b, acc, b.xor(u, flip), s)
    return b.sub(biased, _neon("sdot")(b, const(acc.type, 0), s, flip))


_EMITTERS: dict[str, tuple[int, Emit, Emit, Emit]] = {  # bytes of a register; us, u7s, ss
    "avx512": (64, _vnni_us, _vnni_us, _vnni_ss),
    "avx2": (32, _avx2_us, _avx2_u7s, _avx2_ss),
    "neon": (16, _neon_us, _neon("sdot"), _neon("sdot")),
    "generic": (64, _generic_us, _generic_us, _generic_ss),
}
if "avxvnni" in FEATURES:  # client CPUs since 2021, which lack AVX-512
    _EMITTERS["avx2"] = (32, _vnni_us, _vnni_us, _avxvnni_ss)
_size, *_variants = _EMITTERS[VARIANT]
emit_dot_us, emit_dot_u7s, emit_dot_ss = (in_parts(_size)(emit) for emit in _variants)


def _dot_rule(acc, u, s):
    fits = isinstance(acc, Vec) and isinstance(u, Vec) and u == s and u.elem == "i8"
    return acc if fits and acc.elem == "i32" and u.n == 4 * acc.n else None


dot_us = emits_by(_dot_rule)(emit_dot_us)
dot_u7s = emits_by(_dot_rule)(emit_dot_u7s)
dot_ss = emits_by(_dot_rule)(emit_dot_ss)
BYTES = vty(I8, 64)
