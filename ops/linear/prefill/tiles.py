"""Register tiles of prefill: 16 rows x 4 tokens.

    y[t, r] = sum_k W[r, k] x[t, k]

A step loads 4 columns of 16 rows, broadcasts 4 activations of each token and multiplies. What the
16 registers of AVX2 need: 8 of sums, 2 of weights, 1 broadcast, 1 product.

AVX2 adds products in 16 bits as long as they cannot overflow (`pairs_run`) before it widens them to
32 bits, which is when integer scales are multiplied in for free. Floats follow once per block.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...simd import (
    F32,
    I8,
    I16,
    I32,
    INTP,
    Tile,
    const,
    emit_join,
    fmuladd,
    pair_sums_i16,
    pair_sums_u7s,
    shuffle,
    splat,
    vty,
)
from ..dots import AVX2, dot_onto, madd
from ..formats import FORMATS, Format
from ..formats.pieces import at, pinned, read
from ..groups import TOKENS, GroupLayout
from .panels import PanelLayout, panel_layout

ACC = vty(I32, 16)
BYTES = vty(I8, 32)
FLOATS = vty(F32, 16)


def pairs_run(f: Format) -> int:
    """How many 16-bit pair sums of a lane may be added: of one scale, and no overflow."""
    run = 1
    while run * 2 <= f.grain // 4 and run * 2 * (2 * 127 * f.top) <= 32767:
        run *= 2
    return run


def _broadcast(b, x, j):
    """Activations 4 j .. 4 j + 3 of a token in all 16 rows."""
    return b.bitcast(splat(b, read(b, x, I32, 4 * j), 16), vty(I8, 64))


def _add(b, sums, key, value):
    sums[key] = pinned(b, b.add(sums[key], value)) if key in sums else value


HALVES = (0, 32)  # bytes into 16 rows: AVX2 takes 8 rows at a time


def _unit_pairs(b, f: Format, codes_of, x, scales):
    """AVX2, unsigned codes: 32 columns -> <16 x i32> for each token, integer scales included."""
    totals: dict[Any, Any] = {}
    run = pairs_run(f)
    for start in range(0, 8, run):
        sums: dict[Any, Any] = {}
        for j in range(start, start + run):
            four = codes_of(j)
            codes = [shuffle(b, four, range(half, half + 32)) for half in HALVES]
            for t, xt in enumerate(x):
                xj = b.bitcast(splat(b, read(b, xt, I32, 4 * j), 8), BYTES)
                for half, q in zip(HALVES, codes):
                    _add(b, sums, (t, half), pair_sums_u7s(b, q, xj))
        for half in HALVES:
            factor = const(vty(I16, 16), 1)
            if scales is not None:
                factor = read(b, scales, factor.type, start * 4 // f.grain * 64 + half)
            for t in range(len(x)):
                _add(b, totals, (t, half), pair_sums_i16(b, sums[t, half], factor))
    return [emit_join(b, *(totals[t, half] for half in HALVES)) for t in range(len(x))]


def _unit_words(b, w, x, scales):
    """AVX2, signed codes as words: 32 columns -> <16 x i32> for each token, scales included."""
    totals: dict[Any, Any] = {}
    for j in range(16):
        codes = [read(b, w, vty(I16, 16), 64 * j + half) for half in HALVES]
        for t, xt in enumerate(x):
            xj = b.bitcast(splat(b, read(b, xt, I32, 4 * j), 8), vty(I16, 16))
            for half, q in zip(HALVES, codes):
                _add(b, totals, (t, half), pair_sums_i16(b, q, xj))
    out = [emit_join(b, *(totals[t, half] for half in HALVES)) for t in range(len(x))]
    if scales is None:
        return out
    factor = read(b, scales, ACC)
    return [b.mul(total, factor) for total in out]


def _unit_plain(b, f: Format, codes_of, x, scales):
    """As `_unit_pairs`, for variants whose dot products give 32 bits."""
    totals = [const(ACC, 0)] * len(x)
    for start in range(0, 8, f.grain // 4):
        sums = [const(ACC, 0)] * len(x)
        for j in range(start, start + f.grain // 4):
            codes = codes_of(j)
            sums = [dot_onto(b, s, codes, _broadcast(b, xt, j), f.signed) for s, xt in zip(sums, x)]
        if scales is not None:
            factor = read(b, scales, ACC, start * 4 // f.grain * 64)
            sums = [b.mul(s, factor) for s in sums]
        totals = [b.add(total, s) for total, s in zip(totals, sums)]
    return totals


def unit_of_bytes(b, f: Format, codes_of, x, scales=None):
    """32 columns of 16 rows by each token -> <16 x i32>; codes_of(j): the bytes of four columns.

    Codes that are signed on AVX2 have to be words, which is a panel's matter.
    """
    return (_unit_pairs if AVX2 else _unit_plain)(b, f, codes_of, x, scales)


def _unit(b, f: Format, where: PanelLayout, w, x, scales):
    if where.words:
        return _unit_words(b, w, x, scales)
    return unit_of_bytes(b, f, lambda j: read(b, w, vty(I8, 64), 64 * j), x, scales)


def _units_256(b, f: Format, where: PanelLayout, w, x):
    """The 8 x 32 columns of a block in a loop; sums in variables that LLVM puts in registers."""
    index = ir.IntType(64)
    totals = [cgutils.alloca_once(b, ACC) for _ in x]
    for total in totals:
        b.store(const(ACC, 0), total)
    with cgutils.for_range(b, ir.Constant(index, 8)) as loop:

        def step(base, size):
            return b.gep(base, [b.mul(loop.index, ir.Constant(index, size))])

        scales = step(at(b, w, where.scales), 32 // f.grain * 64)
        codes = step(w, where.code_bytes)
        for total, s in zip(
            totals,
            _unit(b, f, where, codes, [step(v, 64 if where.words else 32) for v in x], scales),
        ):
            b.store(b.add(b.load(total), s), total)
    return [b.load(total) for total in totals]


def _low_256(b, f: Format, where: PanelLayout, w, s):
    """sum of minimum * sum(x) over the block's grains, <16 x i32> for each token."""
    totals = [None] * len(s)
    for j in range(128 // f.grain):
        minima = read(b, w, vty(I16, 32), where.minima + 64 * j)
        for t, st in enumerate(s):
            pair = b.bitcast(splat(b, read(b, st, I32, 4 * j), 16), vty(I16, 32))
            part = madd(b, minima, pair)
            totals[t] = part if totals[t] is None else b.add(totals[t], part)
    return totals


def _block(b, f: Format, w, acc, x, d, s):
    """acc[t] += one block of the panel at w times token t."""
    where = panel_layout(f)
    has_low = not f.signed and (f.block == 256 or not f.centre)
    whole = _unit(b, f, where, w, x, None) if f.block == 32 else _units_256(b, f, where, w, x)
    below = _low_256(b, f, where, w, s) if f.block == 256 and has_low else None
    scale, low = read(b, w, FLOATS, where.d), read(b, w, FLOATS, where.low) if has_low else None
    if f.block == 32:
        ds, ss = ([read(b, p, F32) for p in ps] for ps in (d, s))
        return scaled_sums(b, f, whole, scale, low, acc, ds, ss)
    out = []
    for t, total in enumerate(whole):
        dx = splat(b, read(b, d[t], F32), 16)
        new = fmuladd(b, b.sitofp(total, FLOATS), b.fmul(scale, dx), acc[t])
        if below is not None:
            new = fmuladd(b, b.sitofp(below[t], FLOATS), b.fmul(low, dx), new)
        out.append(new)
    return out


def scaled_sums(b, f: Format, whole, scale, low, acc, d, s):
    """A block of 32, rounded in the order written:

    codes with a centre   acc[t] + scale * (whole[t] * d[t] + s[t]), s already times -centre
    others                acc[t] + whole[t] * (scale * d[t]) + low * s[t]
    """
    out = []
    for integers, before, *floats in zip(whole, acc, d, s):
        total, (dt, st) = b.sitofp(integers, FLOATS), (splat(b, v, 16) for v in floats)
        if f.centre:
            new = fmuladd(b, scale, fmuladd(b, total, dt, st), before)
        else:
            new = fmuladd(b, total, b.fmul(scale, dt), before)
        if low is not None:
            new = fmuladd(b, low, st, new)
        out.append(new)
    return out


SUMS = Tile("f32", TOKENS)


@intrinsic
def no_sums(typingctx):
    return SUMS(), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(SUMS), None)


@intrinsic
def load_sums(typingctx, address):
    """The sums that `store_sums` put there."""

    def codegen(ctx, b, sig, vals):
        place = b.inttoptr(vals[0], I8.as_pointer())
        out = ir.Constant(ctx.get_value_type(SUMS), ir.Undefined)
        for t in range(TOKENS):
            out = b.insert_value(out, read(b, place, vty(F32, 16), 64 * t), t)
        return out

    return SUMS(INTP), codegen


@intrinsic
def store_sums(typingctx, address, sums):
    """float32[TOKENS][16 rows]."""

    def codegen(ctx, b, sig, vals):
        for t in range(TOKENS):
            place = b.add(vals[0], ir.Constant(vals[0].type, 64 * t))
            place = b.inttoptr(place, vty(F32, 16).as_pointer())
            b.store(b.extract_value(vals[1], t), place).align = 4
        return ctx.get_dummy_value()

    return types.void(INTP, SUMS), codegen


@intrinsic(prefer_literal=True)
def multiply(typingctx, kind, sums, w, x):
    """sums += one block of a panel by the same block of a group of tokens (addresses)."""
    f = FORMATS[kind.literal_value]
    where = group_layout(kind.literal_value)

    def codegen(ctx, b, sig, vals):
        attributes = b.function.attributes
        attributes.alignstack = 32  # what waits there is not to cross cache lines
        attributes.add("nounwind")  # as it is: without any other, llvmlite forgets the first
        _, before, w, x = vals
        w, x = (b.inttoptr(v, I8.as_pointer()) for v in (w, x))
        tokens = [
            [at(b, x, start + t * size) for t in range(TOKENS)]
            for start, size in ((0, where.row), (where.d, 4), (where.s, where.s_row))
        ]
        acc = [b.extract_value(before, t) for t in range(TOKENS)]
        out = before
        for t, v in enumerate(_block(b, f, w, acc, *tokens)):
            out = b.insert_value(out, v, t)
        return out

    return sums(kind, sums, INTP, INTP), codegen


def group_layout(kind: int) -> GroupLayout:
    """How the kernel of this format reads activations."""
    f = FORMATS[kind]
    centre = f.centre if f.block == 32 else 0
    return GroupLayout(f.block, panel_layout(f).words, f.grain, centre)
