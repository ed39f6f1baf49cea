"""Decode: a block of a quantised matrix by that of a few vectors, as instructions.

`Format` reads a block. The vectors are int8 with a scale per 32 (or 256) columns, and their sums
(`activations`). The arithmetic of a vector does not depend on the number of vectors, so that a
draft has the same bits when it is verified at once as when it is decoded token by token.
"""

from llvmlite import ir

from ....jit.cached import jit
from ....jit.simd import (
    F32,
    I8,
    I16,
    I32,
    VARIANT,
    Vec,
    at,
    const,
    emit_join,
    fmuladd,
    read,
    shuffle,
    splat,
    vty,
)
from ..arguments import Quantised
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
from ..formats import Format

BLOCKS_AT_ONCE = 4  # of 32: their scales share a vector
# In bytes. The hardware prefetcher stops at the end of each page. Without prefetching, a core reads
# 12.5 to 14.4 GB/s of the 21 that plain summing reaches; with it, 17 (4-bit) to 21 (Q8_0). On a
# Cascade Lake exactly a page is best, by 3 to 8%.
PREFETCH_DISTANCE = 4096 if VARIANT == "avx512" else 3072


_PART_BYTES = 128 << 10
_PART_ROWS = 32


@jit
def rows_of_part(w, n_threads):
    """The rows of `Matrix` w that a thread takes from the ticket at once: a multiple of _PART_ROWS.

    A prefetch beyond the end of a part is wasted. In parts of 32 short rows that was a third of all
    prefetches: an output matrix of 640 columns was read at 14 instead of 20 GB/s. Small matrices
    have four parts a thread, so that a late thread delays the product little.
    """
    rows = min(_PART_BYTES // w.row_bytes, w.n_rows // (4 * n_threads))
    return max(rows // _PART_ROWS, 1) * _PART_ROWS


def low_type(f: Format) -> Vec:
    """The sums of low * sum(x): a lane per block of 32; per pair of grains of a block of 256."""
    return Vec("f32", BLOCKS_AT_ONCE if f.block == 32 else 8)


def _add_four_dots(b, f, acc, both, blocks, x):
    """The first 8 lanes of acc += the dots of four blocks * both."""
    codes = [q for p in blocks for q in f.codes(b, p)]
    dots = four_dots(b, codes, [read(b, x, vty(I8, 32), 32 * i) for i in range(BLOCKS_AT_ONCE)])
    half, rest = (shuffle(b, acc, range(k, k + 8)) for k in (0, 8))
    twice = shuffle(b, both, [*range(BLOCKS_AT_ONCE)] * 2)
    return emit_join(b, fmuladd(b, b.sitofp(dots, half.type), twice, half), rest)


def _add_dots(b, f, acc, both, blocks, x):
    """acc += the dots of any number of blocks * both."""
    n = len(blocks)
    for i, q in enumerate(join_pairs(b, (q for p in blocks for q in f.codes(b, p)))):
        single = 2 * i + 1 == n  # the last of an odd number
        xs = read(b, at(b, x, 64 * i), vty(I8, 32 if single else 64))
        lanes = [2 * i] * 8 + [2 * i if single else 2 * i + 1] * 8
        part = b.sitofp(dot(b, q, join(b, xs, None) if single else xs, f.signed), acc.type)
        acc = fmuladd(b, part, shuffle(b, both, lanes), acc)
    return acc


def _add_32(b, f, n, sums, w, tokens):
    """n blocks of 32, for each token: acc += dots * (weight scale * activation scale)."""
    blocks = [at(b, w, i * f.n_bytes) for i in range(n)]
    scale, low = f.d_and_low(b, blocks)
    add = _add_four_dots if n == BLOCKS_AT_ONCE and fits_four_dots(f) else _add_dots
    lanes, zero = [*range(n), *[n] * (BLOCKS_AT_ONCE - n)], ir.Constant(scale.type, [0.0] * n)
    if low is not None and n < BLOCKS_AT_ONCE:
        low = shuffle(b, low, lanes, zero)
    out = []
    for (acc, below), (x, d, s) in zip(sums, tokens):
        dots = add(b, f, acc, b.fmul(scale, read(b, d, scale.type)), blocks, x)
        rest = below
        if low is not None:
            parts = read(b, s, scale.type)
            parts = shuffle(b, parts, lanes, zero) if n < BLOCKS_AT_ONCE else parts
            rest = fmuladd(b, low, parts, below)
        out.append((dots, rest))
    return out


def _add_256(b, f, sums, w, tokens):
    """One block of 256: sums products by integer scales in integers, then scales them by d.

    The product with a centre is an integer, too: the sum begins with it.
    """
    scales, minima = factors(b, f, w)
    whole = [None] * len(tokens)
    if f.centre and minima is not None:
        offsets = b.mul(minima, const(minima.type, -f.centre))
        whole = [_sums_of_sums(b, offsets, s, 16) for _, _, s in tokens]
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
    return _add_32(b, f, n, sums, w, tokens) if f.block == 32 else _add_256(b, f, sums, w, tokens)


def _block_bytes(f: Format) -> tuple[int, int, int]:
    """Bytes of one block of activations, of its scale and of its sums."""
    return f.block, 4, 4 if f.block == 32 else 32


def pointers_on(b, f: Format, x, n):
    """Pointers into the activations x (`Quantised`), n blocks further."""
    places = (b.extract_value(x, i) for i in range(len(Quantised._fields)))
    return [
        at(b, b.add(place, b.mul(n, ir.Constant(n.type, size))))
        for place, size in zip(places, _block_bytes(f))
    ]


def make_blocks_on(f: Format):
    """The jitted function that gives the addresses of the activations n blocks further."""
    q, d, s = _block_bytes(f)

    @jit
    def _blocks_on(x, n):
        return Quantised(x.q + n * q, x.d + n * d, x.s + n * s)

    return _blocks_on
