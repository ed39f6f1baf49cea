"""Decode: the rows of a quantised matrix by one vector, read straight from the file's bytes.

    y[r] = sum_k W[r, k] x[k]

One source for every format: `kind` (a literal) picks the entry of `FORMATS` whose emitters decode
a block. Threads take parts of 32 rows. Bytes read per call: those of the matrix.

The vector is int8 with a scale per 32 (or 256) and its sums beside it (`activations`).
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit.cached import jit
from ....jit.launch import Kernel
from ....jit.launch.atomics import take
from ....jit.launch.legacy_define import step
from ....jit.simd import (
    F32,
    I8,
    I16,
    I32,
    INTP,
    VARIANT,
    Vec,
    const,
    emit_join,
    f32x16,
    fmuladd,
    hsum,
    prefetch_l1,
    set_f32,
    shuffle,
    splat,
    store,
    vty,
)
from ..dots import (
    add_scaled,
    codes_64,
    dot,
    factors,
    fits_four_dots,
    four_dots,
    join,
    join_pairs,
    madd,
)
from ..formats import FORMATS, KINDS, Format
from ..formats.pieces import at, read

STEP = 4  # blocks of 32 per step: their scales share a vector
# Bytes to ask for ahead. The hardware's prefetcher stops at the end of each page: without this a
# core reads 12.5 to 14.4 GB/s of the 21 that a sum reaches, with it 17 (4-bit) to 21 (Q8_0). On a
# Cascade Lake exactly a page is best, by 3 to 8%.
AHEAD = 4096 if VARIANT == "avx512" else 3072
PART = 32  # rows that a thread takes at a time


def low_type(f: Format) -> Vec:
    """The sums of low * sum(x): a lane per block of 32; per pair of grains of a block of 256."""
    return Vec("f32", STEP if f.block == 32 else 8)


def _add_four_dots(b, f, acc, both, blocks, x):
    """acc (of which the first 8 lanes) += the dots of four blocks * both."""
    codes = [q for p in blocks for q in f.codes(b, p)]
    dots = four_dots(b, codes, [read(b, x, vty(I8, 32), 32 * i) for i in range(STEP)])
    half, rest = (shuffle(b, acc, range(k, k + 8)) for k in (0, 8))
    twice = shuffle(b, both, [*range(STEP)] * 2)
    return emit_join(b, fmuladd(b, b.sitofp(dots, half.type), twice, half), rest)


def _add_dots(b, f, acc, both, blocks, x):
    """acc += the dots of any number of blocks * both."""
    n = len(blocks)
    for i, q in enumerate(join_pairs(b, (q for p in blocks for q in f.codes(b, p)))):
        last = 2 * i + 1 == n  # without a partner
        xs = read(b, at(b, x, 64 * i), vty(I8, 32 if last else 64))
        lanes = [2 * i] * 8 + [2 * i if last else 2 * i + 1] * 8
        part = b.sitofp(dot(b, q, join(b, xs, None) if last else xs, f.signed), acc.type)
        acc = fmuladd(b, part, shuffle(b, both, lanes), acc)
    return acc


def _step_32(b, f, n, sums, w, tokens):
    """n blocks of 32, for each token: acc += dots * (weight scale * activation scale)."""
    blocks = [at(b, w, i * f.n_bytes) for i in range(n)]
    scale, low = f.d_and_low(b, blocks)
    add = _add_four_dots if n == STEP and fits_four_dots(f) else _add_dots
    lanes, zero = [*range(n), *[n] * (STEP - n)], ir.Constant(scale.type, [0.0] * n)
    if low is not None and n < STEP:
        low = shuffle(b, low, lanes, zero)
    out = []
    for (acc, below), (x, d, s) in zip(sums, tokens):
        dots = add(b, f, acc, b.fmul(scale, read(b, d, scale.type)), blocks, x)
        rest = below
        if low is not None:
            parts = read(b, s, scale.type)
            parts = shuffle(b, parts, lanes, zero) if n < STEP else parts
            rest = fmuladd(b, low, parts, below)
        out.append((dots, rest))
    return out


def _step_256(b, f, sums, w, tokens):
    """One block of 256: integer scales inside, one pair of floats outside.

    What a centre takes off is an integer, too: it is what the sum of the products begins with.
    """
    scales, minima = factors(b, f, w)
    whole = [None] * len(tokens)
    if f.centre and minima is not None:
        taken = b.mul(minima, const(minima.type, -f.centre))
        whole = [_sums_of_sums(b, taken, s, 16) for _, _, s in tokens]
    for i, q in enumerate(codes_64(b, f, w)):
        for t, (x, _, _) in enumerate(tokens):
            xs = read(b, at(b, x, 64 * i), vty(I8, 64))
            whole[t] = add_scaled(b, whole[t], f, q, xs, scales[i])
    scale, low = (v and b.extract_element(v, ir.Constant(I32, 0)) for v in f.floats(b, [w]))
    out = []
    for (acc, below), total, (_, d, s) in zip(sums, whole, tokens):
        dx = read(b, d, F32)
        dots = fmuladd(b, b.sitofp(total, acc.type), splat(b, b.fmul(scale, dx), 16), acc)
        rest = below
        if low is not None:
            m = b.sitofp(_sums_of_sums(b, minima, s, 8), below.type)
            rest = fmuladd(b, m, splat(b, b.fmul(low, dx), 8), below)
        out.append((dots, rest))
    return out


def _sums_of_sums(b, factors, s, lanes):
    """<16 x i16> by the sums of activations at s, in pairs -> <lanes x i32>: 8, then zeros."""
    pairs = madd(b, factors, read(b, s, vty(I16, 16)))
    return pairs if lanes == 8 else shuffle(b, pairs, range(lanes), const(pairs.type, 0))


def add_to(b, f, n, sums, w, tokens):
    """n blocks at w by those of each token (pointers to x, scales, sums), onto its (acc, below)."""
    return _step_32(b, f, n, sums, w, tokens) if f.block == 32 else _step_256(b, f, sums, w, tokens)


@intrinsic(prefer_literal=True)
def no_low(typingctx, kind):
    """Zeros to begin `below` with."""
    ty = low_type(FORMATS[kind.literal_value])
    return ty(kind), lambda ctx, b, sig, vals: ir.Constant(ty.ir, None)


@intrinsic(prefer_literal=True)
def add_blocks(typingctx, kind, n, acc, below, w, x, d, s):
    """n blocks at address w by the activations at x, with scales d and sums s -> (acc, below)."""
    f, n_blocks = FORMATS[kind.literal_value], n.literal_value
    both = types.Tuple((acc, below))

    def codegen(ctx, b, sig, vals):
        pointers = [b.inttoptr(v, I8.as_pointer()) for v in vals[4:]]
        [sums] = add_to(b, f, n_blocks, [vals[2:4]], pointers[0], [pointers[1:]])
        return ctx.make_tuple(b, both, sums)

    return both(kind, n, f32x16, below, *[INTP] * 4), codegen


def matvec_kernel(type_name: str) -> Kernel:
    """`y = W x` of one format.

    Arguments: address, row stride in bytes and rows of W; addresses of the activations, their
    scales and their sums; blocks per row; address of y, float32[N].
    """
    kind = KINDS[type_name]
    f = FORMATS[kind]
    size, block = f.n_bytes, f.block
    n_at_once = STEP if block == 32 else 1
    s_bytes = 4 if block == 32 else 32
    lines = max(64, n_at_once * size - 32)  # the odd last part of a line is left to the hardware

    @jit
    def _one_row(row, x, d, s, n_blocks):
        acc, low = set_f32(0.0), no_low(kind)
        for _ in range(n_blocks // n_at_once):
            for line in range(AHEAD, AHEAD + lines, 64):
                prefetch_l1(row, line)
            acc, low = add_blocks(kind, n_at_once, acc, low, row, x, d, s)
            row, x = row + n_at_once * size, x + n_at_once * block
            d, s = d + n_at_once * 4, s + n_at_once * s_bytes
        for _ in range(n_blocks % n_at_once):
            acc, low = add_blocks(kind, 1, acc, low, row, x, d, s)
            row, x, d, s = row + size, x + block, d + 4, s + s_bytes
        return hsum(acc) + hsum(low)

    @step("iiiiiiii")
    def _matvec_kernel(part, parts, ticket, w, stride, n_rows, x, d, s, n_blocks, out):
        first = take(ticket) * PART
        while first < n_rows:
            for r in range(first, min(first + PART, n_rows)):
                store(out, 4 * r, _one_row(w + r * stride, x, d, s, n_blocks))
            first = take(ticket) * PART

    return _matvec_kernel
