"""Decode: rows of a quantised matrix by one vector (or a few), read straight from the file's bytes.

    y[t, r] = sum_k W[r, k] x[t, k]

One source for every format: `kind` (a literal) picks the entry of `FORMATS` whose emitters decode
a block. Rows are split over threads in fixed parts. A block is decoded once, in registers, for all
the `tokens` of a call. Bytes read per call: those of the matrix.

The activations of a token are int8 with a scale per 32 (or 256) and their sums (`activations`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from ..cache import jit
from ..simd import fmuladd, shuffle, splat, sum_lanes, vty
from .dots import dot, join, join_pairs, madd, scaled_dot
from .formats import F32, I8, I16, Format, at, read
from .kformats import FORMATS
from .registers import Registers, pack, unpack

INTP = types.intp
STEP = 4  # blocks of 32 per step: their scales share a vector


def _sums_type(f: Format, tokens: int) -> Registers:
    """Per token: sums of d * dot, and of low * sum(x)."""
    low = STEP if f.block == 32 else 8
    return Registers(*(part for _ in range(tokens) for part in (("f32", 16), ("f32", low))))


def _pointer(b, address, offset=None):
    if offset is not None:
        address = b.add(address, offset)
    return b.inttoptr(address, I8.as_pointer())


def _step_32(b, f, n, sums, w, x, d, s):
    """n blocks of 32: sums += dots * (weight scale * activation scale)."""
    blocks = [at(b, w, i * f.n_bytes) for i in range(n)]
    codes = join_pairs(b, [f.codes(b, p)[0] for p in blocks])
    scale, low = f.floats(b, blocks)
    out = []
    for t in range(len(x)):
        acc, below = sums[2 * t], sums[2 * t + 1]
        both = b.fmul(scale, read(b, d[t], scale.type))
        for i, q in enumerate(codes):
            one = 2 * i + 1 == n
            xs = read(b, at(b, x[t], 64 * i), vty(I8, 32 if one else 64))
            if one:
                xs = join(b, xs, None)
            lanes = [2 * i] * 8 + [2 * i + (0 if one else 1)] * 8
            sum_f = b.sitofp(dot(b, q, xs, f.signed), acc.type)
            acc = fmuladd(b, sum_f, shuffle(b, both, lanes), acc)
        if low is not None:
            more = [read(b, s[t], low.type), low]
            if n < STEP:  # fill up with zeros
                lanes = [*range(n), *[n] * (STEP - n)]
                zero = ir.Constant(low.type, [0.0] * n)
                more = [shuffle(b, v, lanes, zero) for v in more]
            below = fmuladd(b, more[0], more[1], below)
        out += [acc, below]
    return out


def _step_256(b, f, sums, w, x, d, s):
    """One block of 256: integer scales inside, one pair of floats outside."""
    codes = join_pairs(b, f.codes(b, w))
    scales, minima = f.scales(b, w)
    scale, low = (
        v and b.extract_element(v, ir.Constant(ir.IntType(32), 0)) for v in f.floats(b, [w])
    )
    out = []
    for t in range(len(x)):
        acc, below = sums[2 * t], sums[2 * t + 1]
        whole = None
        for i, q in enumerate(codes):
            part = scaled_dot(
                b, q, read(b, at(b, x[t], 64 * i), vty(I8, 64)), f.signed, scales, 4 * i
            )
            whole = part if whole is None else b.add(whole, part)
        dx = read(b, d[t], F32)
        acc = fmuladd(b, b.sitofp(whole, acc.type), splat(b, b.fmul(scale, dx), 16), acc)
        if minima is not None:
            m = madd(b, minima, read(b, s[t], vty(I16, 16)))
            below = fmuladd(b, b.sitofp(m, below.type), splat(b, b.fmul(low, dx), 8), below)
        out += [acc, below]
    return out


@intrinsic(prefer_literal=True)
def no_sums(typingctx, kind, tokens):
    ty = _sums_type(FORMATS[kind.literal_value], tokens.literal_value)
    return ty(kind, tokens), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(ty), None)


@intrinsic(prefer_literal=True)
def add_blocks(typingctx, kind, n, sums, w, x, x_stride, d, d_stride, s, s_stride):
    """sums += n blocks at w by the activations x of each token, their scales d and sums s."""
    f, n_blocks, tokens = FORMATS[kind.literal_value], n.literal_value, len(sums.parts) // 2

    def codegen(ctx, b, sig, vals):
        _, _, before, w, *rest = vals
        places = []
        for base, stride in zip(rest[::2], rest[1::2]):
            places.append(
                [
                    _pointer(b, base, b.mul(stride, ir.Constant(stride.type, t)))
                    for t in range(tokens)
                ]
            )
        old = unpack(b, before)
        if f.block == 32:
            new = _step_32(b, f, n_blocks, old, _pointer(b, w), *places)
        else:
            new = _step_256(b, f, old, _pointer(b, w), *places)
        return pack(b, before.type, new)

    return sums(kind, n, sums, *[INTP] * 7), codegen


@intrinsic(prefer_literal=True)
def total(typingctx, sums, token):
    """The sum of a token's lanes."""
    t = token.literal_value

    def codegen(ctx, b, sig, vals):
        total = ir.Constant(F32, -0.0)
        for v in unpack(b, vals[0])[2 * t : 2 * t + 2]:
            total = b.fadd(total, sum_lanes(b, v))
        return total

    return types.float32(sums, token), codegen


@cache
def matvec_kernel(kind: int) -> Any:
    """The jitted `y = W x` of one format.

    Arguments: address, row stride in bytes and rows of W; addresses of the activations, their
    scales and their sums; blocks per row; out float32[1, N]; threads.
    """
    f = FORMATS[kind]
    size, block = f.n_bytes, f.block
    step = STEP if block == 32 else 1
    s_bytes = 4 if block == 32 else 32

    # Apart from the parallel loop: Numba takes a multiple of the time for what stands in one.
    @jit
    def _one_row(row, x, d, s, n_blocks):
        sums = no_sums(kind, 1)
        for _ in range(n_blocks // step):
            sums = add_blocks(kind, step, sums, row, x, 0, d, 0, s, 0)
            row, x, d, s = row + step * size, x + step * block, d + step * 4, s + step * s_bytes
        for _ in range(n_blocks % step):
            sums = add_blocks(kind, 1, sums, row, x, 0, d, 0, s, 0)
            row, x, d, s = row + size, x + block, d + 4, s + s_bytes
        return total(sums, 0)

    @jit(parallel=True)
    def _matvec_kernel(w, stride, n_rows, x, d, s, n_blocks, out, threads):
        for th in prange(threads):
            for r in range(n_rows * th // threads, n_rows * (th + 1) // threads):
                out[0, r] = _one_row(w + r * stride, x, d, s, n_blocks)

    return _matvec_kernel
