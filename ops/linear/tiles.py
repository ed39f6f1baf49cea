"""Prefill: a quantised matrix by many vectors, in register tiles of 16 rows x 4 tokens.

    y[t, r] = sum_k W[r, k] x[t, k]

Threads take panels of 16 rows one by one. Each is
unpacked into its thread's buffer (`panels`), which stays in L2, and used for all tokens: a step
loads 4 columns of 16 rows, broadcasts 4 activations of each token and multiplies. What the 16
registers of AVX2 need: 8 of sums, 2 of weights, 1 broadcast, 1 product.

AVX2 adds products in 16 bits as long as they cannot overflow (`pairs_run`) before it widens them to
32 bits, which is when integer scales are multiplied in for free. Floats follow once per block.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..cache import jit
from ..simd import (
    F32,
    I8,
    I16,
    I32,
    INTP,
    Tile,
    const,
    emit_join,
    fmuladd,
    load_one_f32,
    pair_sums_i16,
    pair_sums_u7s,
    pointer,
    splat,
    store,
    vty,
)
from .activations import TOKENS
from .dots import AVX2, dot_onto, madd
from .formats import Format, at, pinned, read
from .kformats import FORMATS
from .panels import PanelLayout, decode_row, panel_layout, spread
from .share import take

ACC = vty(I32, 16)
BYTES = vty(I8, 32)
EDGE = TOKENS * 64  # a tile that does not fit into `out` goes through here


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


def _unit_pairs(b, f: Format, where: PanelLayout, w, x, scales):
    """AVX2, unsigned codes: 32 columns -> <16 x i32> for each token, integer scales included."""
    totals: dict[Any, Any] = {}
    run = pairs_run(f)
    for start in range(0, 8, run):
        sums: dict[Any, Any] = {}
        for j in range(start, start + run):
            codes = [read(b, w, BYTES, 64 * j + half) for half in HALVES]
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


def _unit_words(b, f: Format, where: PanelLayout, w, x, scales):
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


def _unit_plain(b, f: Format, where: PanelLayout, w, x, scales):
    """As `_unit_pairs`, for variants whose dot products give 32 bits."""
    totals = [const(ACC, 0)] * len(x)
    for start in range(0, 8, f.grain // 4):
        sums = [const(ACC, 0)] * len(x)
        for j in range(start, start + f.grain // 4):
            codes = read(b, w, vty(I8, 64), 64 * j)
            sums = [dot_onto(b, s, codes, _broadcast(b, xt, j), f.signed) for s, xt in zip(sums, x)]
        if scales is not None:
            factor = read(b, scales, ACC, start * 4 // f.grain * 64)
            sums = [b.mul(s, factor) for s in sums]
        totals = [b.add(total, s) for total, s in zip(totals, sums)]
    return totals


def _unit(b, f: Format, where: PanelLayout, w, x, scales):
    if not AVX2:
        return _unit_plain(b, f, where, w, x, scales)
    return (_unit_words if where.words else _unit_pairs)(b, f, where, w, x, scales)


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
    for j in range(8):
        minima = read(b, w, vty(I16, 32), where.minima + 64 * j)
        for t, st in enumerate(s):
            pair = b.bitcast(splat(b, read(b, st, I32, 4 * j), 16), vty(I16, 32))
            part = madd(b, minima, pair)
            totals[t] = part if totals[t] is None else b.add(totals[t], part)
    return totals


def _block(b, f: Format, w, acc, x, d, s):
    """acc[t] += one block of the panel at w times token t."""
    where = panel_layout(f)
    has_low = not f.signed
    whole = _unit(b, f, where, w, x, None) if f.block == 32 else _units_256(b, f, where, w, x)
    below = _low_256(b, f, where, w, s) if f.block == 256 and has_low else None
    scale, out = read(b, w, vty(F32, 16), where.d), []
    for t, total in enumerate(whole):
        dx = splat(b, read(b, d[t], F32), 16)
        new = fmuladd(b, b.sitofp(total, scale.type), b.fmul(scale, dx), acc[t])
        if has_low:
            low = read(b, w, scale.type, where.low)
            if below is None:
                new = fmuladd(b, low, splat(b, read(b, s[t], F32), 16), new)
            else:
                new = fmuladd(b, b.sitofp(below[t], scale.type), b.fmul(low, dx), new)
        out.append(new)
    return out


SUMS = Tile("f32", TOKENS)


@intrinsic
def no_sums(typingctx):
    return SUMS(), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(SUMS), None)


@intrinsic(prefer_literal=True)
def multiply(typingctx, kind, sums, w, x, x_stride, d, d_stride, s, s_stride):
    """sums += one block of a panel by the same block of TOKENS tokens (addresses, bytes apart)."""
    f = FORMATS[kind.literal_value]

    def codegen(ctx, b, sig, vals):
        _, before, w, *rest = vals
        tokens = [
            [
                b.inttoptr(b.add(base, b.mul(stride, ir.Constant(stride.type, t))), I8.as_pointer())
                for t in range(TOKENS)
            ]
            for base, stride in zip(rest[::2], rest[1::2])
        ]
        acc = [b.extract_value(before, t) for t in range(TOKENS)]
        out = before
        for t, v in enumerate(_block(b, f, b.inttoptr(w, I8.as_pointer()), acc, *tokens)):
            out = b.insert_value(out, v, t)
        return out

    return sums(kind, sums, *[INTP] * 7), codegen


@intrinsic
def store_tokens(typingctx, target, offset, stride, sums):
    """Token t's 16 sums go to target (an array or an address) + offset + t * stride bytes."""

    def codegen(ctx, b, sig, vals):
        for t in range(sums.n):
            place = b.add(vals[1], b.mul(vals[2], ir.Constant(vals[2].type, t)))
            place = pointer(ctx, b, sig.args[0], vals[0], place, vty(F32, 16))
            b.store(b.extract_value(vals[3], t), place).align = 4
        return ctx.get_dummy_value()

    return types.void(target, INTP, INTP, sums), codegen


def takes_words(kind: int) -> bool:
    """Whether the kernel of this format reads activations as int16."""
    return panel_layout(FORMATS[kind]).words


def scratch_bytes(kind: int, n_cols: int) -> int:
    """Bytes each thread of the kernel works in: a panel, its rows before transposition, a tile."""
    where = panel_layout(FORMATS[kind])
    return n_cols // FORMATS[kind].block * where.n_bytes + where.rows_bytes + EDGE


@cache
def matmul_kernel(kind: int) -> Any:
    """The jitted Y = X W^T of one format.

    Arguments: address, row stride in bytes and rows of W; addresses of the activations, their
    scales and their sums; blocks per row; out float32[T, N]; address of the buffers and bytes for
    each thread; address of an int64; threads. Reads activations of up to TOKENS - 1 rows after the
    last.
    """
    f, where = FORMATS[kind], panel_layout(FORMATS[kind])
    size, block, panel_bytes, rows_bytes = f.n_bytes, f.block, where.n_bytes, where.rows_bytes
    s_bytes = 4 if block == 32 else 32
    x_bytes = block * 2 if where.words else block

    # Apart from the parallel loop: Numba takes a multiple of the time for what stands in one.
    @jit
    def _unpack_panel(w, stride, rows, n_blocks, panel, waiting):
        for i in range(n_blocks):
            to = panel + i * panel_bytes
            for r in range(16):
                decode_row(kind, w + min(r, rows - 1) * stride + i * size, r, waiting, to)
            spread(kind, waiting, to)

    @jit
    def _use_panel(panel, rows, x, d, s, n_blocks, out, first, edge):
        n_tokens, n_rows = out.shape
        x_row, d_row, s_row = n_blocks * x_bytes, n_blocks * 4, n_blocks * s_bytes
        for t in range(0, n_tokens, TOKENS):
            sums, w = no_sums(), panel
            xt, dt, st = x + t * x_row, d + t * d_row, s + t * s_row
            for _ in range(n_blocks):
                sums = multiply(kind, sums, w, xt, x_row, dt, d_row, st, s_row)
                w, xt, dt, st = w + panel_bytes, xt + x_bytes, dt + 4, st + s_bytes
            if rows == 16 and t + TOKENS <= n_tokens:
                store_tokens(out, (t * n_rows + first) * 4, n_rows * 4, sums)
            else:
                store_tokens(edge, 0, 64, sums)
                for k in range(min(TOKENS, n_tokens - t)):
                    for r in range(rows):
                        out[t + k, first + r] = load_one_f32(edge, (k * 16 + r) * 4)

    @jit(parallel=True)
    def _matmul_kernel(
        w, stride, n_rows, x, d, s, n_blocks, out, scratch, per_thread, counter, threads
    ):
        store(counter, 0, 0)
        for th in prange(threads):
            panel = scratch + th * per_thread
            waiting = panel + n_blocks * panel_bytes
            first = take(counter) * 16
            while first < n_rows:
                rows = min(16, n_rows - first)
                _unpack_panel(w + first * stride, stride, rows, n_blocks, panel, waiting)
                _use_panel(panel, rows, x, d, s, n_blocks, out, first, waiting + rows_bytes)
                first = take(counter) * 16

    return _matmul_kernel
